"""Compiles a message and its shape into the tables of kernels.py, once per schema.

The tables contain addresses of enum names, so the program owns the memory of these.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from numpy.typing import NDArray

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.column_buffers import TEXT_SIZE, Layout
from lakestream.data.typed.protobuf import kernels as k
from lakestream.schemas.field_path import below
from lakestream.schemas.protobuf import to_types as names
from lakestream.schemas.protobuf.to_types import entry_of, is_map, message_of, single_column_type
from lakestream.schemas.types import MapOf, Primitive, Struct

_F: Final = FieldDescriptor
_TYPES: Final = {
    _F.TYPE_INT32: k.INT32,
    _F.TYPE_INT64: k.INT64,
    _F.TYPE_UINT32: k.UINT32,
    _F.TYPE_UINT64: k.UINT64,
    _F.TYPE_SINT32: k.SINT32,
    _F.TYPE_SINT64: k.SINT64,
    _F.TYPE_BOOL: k.BOOL,
    _F.TYPE_ENUM: k.ENUMERATION,
    _F.TYPE_FIXED32: k.FIXED32,
    _F.TYPE_SFIXED32: k.SFIXED32,
    _F.TYPE_FLOAT: k.FLOAT,
    _F.TYPE_FIXED64: k.FIXED64,
    _F.TYPE_SFIXED64: k.SFIXED64,
    _F.TYPE_DOUBLE: k.DOUBLE,
    _F.TYPE_STRING: k.STRING,
    _F.TYPE_BYTES: k.BYTES,
    _F.TYPE_MESSAGE: k.MESSAGE,
}
_ONE_VALUE: Final = {
    names.TIMESTAMP: k.TIMESTAMP,
    names.DATE: k.DATE,
    names.TIME: k.TIME,
    names.DECIMAL: k.DECIMAL,
    names.EMPTY: k.EMPTY,
}
_MASK: Final = 2**64 - 1
_HASH: Final = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    layout: Layout
    fields: Longs
    scopes: Longs
    enums: Longs
    weights: Longs
    """The slots that a row of each domain counts as."""
    depth_max: int
    seen_size: int
    paths: tuple[str, ...]
    """Path of each field."""
    held: NDArray[np.uint8]

    @classmethod
    def of(cls, message: Descriptor, layout: Layout) -> "Program":
        builder = _Builder(layout)
        builder.struct(message, layout.shape, 0, "", 1)
        return builder.done()


@dataclass(slots=True)
class _Field:
    path: str
    number: int
    type: int
    node: int
    list: int = -1
    scope: int = -1
    presence: int = k.EXPLICIT
    oneof: str = ""
    packed: bool = False
    enum: int = -1
    size: int = 0
    """Size of the default value."""
    flags: int = 0


@dataclass(slots=True)
class _Scope:
    kind: int
    node: int
    one: Primitive | None = None
    fields: list[_Field] = field(default_factory=list)


class _Builder:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._scopes: list[_Scope] = []
        self._enums: dict[EnumDescriptor, int] = {}
        self._lax: dict[str, bool] = {}
        self._depth_max = 1

    def struct(self, message: Descriptor, shape: Struct, node: int, path: str, depth: int) -> int:
        """Adds the scope of a message that is a struct, and returns its number."""
        number = self._open(_Scope(k.PLAIN, node), depth)
        child = node + 1
        for one in shape.fields:
            assert one.number is not None, "Protobuf numbers its fields"
            found = message.fields_by_number[one.number]
            self._scopes[number].fields.append(self._field(found, child, below(path, found.name), depth))
            child = int(self._layout.ends[child])
        return number

    def _open(self, scope: _Scope, depth: int) -> int:
        self._depth_max = max(self._depth_max, depth)
        self._scopes.append(scope)
        return len(self._scopes) - 1

    def _field(self, found: FieldDescriptor, node: int, path: str, depth: int) -> _Field:
        if is_map(found):
            return self._map(found, node, path, depth)
        if not found.is_repeated:
            return self._single(found, node, path, depth)
        one = self._single(found, node + 1, path, depth)
        one.list, one.packed = node, found.is_packed
        return one

    def _map(self, found: FieldDescriptor, node: int, path: str, depth: int) -> _Field:
        assert isinstance(self._layout.types[node], MapOf), "the shape says the same"
        key, value = entry_of(found)
        number = self._open(_Scope(k.ENTRY, node + 1), depth + 1)
        for half, at, name in ((key, node + 1, "key"), (value, int(self._layout.ends[node + 1]), "value")):
            one = self._single(half, at, below(path, name), depth + 1)
            one.presence = k.ALWAYS
            if half is key:
                one.flags = 0  # A key is never null.
            self._scopes[number].fields.append(one)
        return _Field(path, found.number, k.MESSAGE, node + 1, list=node, scope=number)

    def _single(self, found: FieldDescriptor, node: int, path: str, depth: int) -> _Field:
        one = self._scalar(found, node, path)
        if found.type == _F.TYPE_MESSAGE:
            one.scope = self._message(found, node, path, depth + 1)
        if found.containing_oneof is not None and len(found.containing_oneof.fields) > 1:
            one.oneof = found.containing_oneof.name
        return one

    def _message(self, found: FieldDescriptor, node: int, path: str, depth: int) -> int:
        message, shape = message_of(found), self._layout.types[node]
        if isinstance(shape, Struct):
            return self.struct(message, shape, node, path, depth)
        is_wrapper = message.full_name in names.WRAPPERS
        scope = _Scope(k.WRAPPER if is_wrapper else _ONE_VALUE[message.full_name], node, single_column_type(found))
        for place, inner in enumerate(message.fields):
            one = self._scalar(inner, node if is_wrapper else -1 - place, below(path, inner.name))
            one.flags = 0
            scope.fields.append(one)
        return self._open(scope, depth)

    def _scalar(self, found: FieldDescriptor, node: int, path: str) -> _Field:
        presence = k.EXPLICIT if found.has_presence else k.IMPLICIT
        one = _Field(
            path, found.number, _TYPES[found.type], node, presence=k.REQUIRED if found.is_required else presence
        )
        if found.enum_type is not None:
            one.enum = self._enum(found.enum_type)
            one.flags = k.CLOSED if found.enum_type.is_closed else 0
        if found.type == _F.TYPE_STRING and self._allows_invalid_utf8(found):
            one.flags = k.LAX
        return one

    def _enum(self, enum: EnumDescriptor) -> int:
        return self._enums.setdefault(enum, len(self._enums))

    def _allows_invalid_utf8(self, found: FieldDescriptor) -> bool:
        """Returns whether strings may be invalid UTF-8: proto2 does not check them, later versions do."""
        assert found.containing_type is not None, "fields of messages only"
        file = found.containing_type.file
        if file.name not in self._lax:
            proto = FileDescriptorProto()
            file.CopyToProto(proto)
            self._lax[file.name] = proto.syntax in ("", "proto2")
        return self._lax[file.name]

    def done(self) -> Program:
        names_of = [_named(enum) for enum in self._enums]
        held = np.frombuffer(b"\0".join(name for named in names_of for name in named) or b"\0", np.uint8).copy()
        tables, starts, defaults = _enum_tables(names_of, held.ctypes.data)
        ordered = [sorted(scope.fields, key=lambda one: one.number) for scope in self._scopes]
        total = sum(map(len, ordered))
        fields, scopes = np.zeros((total, k.FIELD_WIDTH), np.int64), np.zeros((len(ordered), k.SCOPE_WIDTH), np.int64)
        oneofs: dict[tuple[int, str], int] = {}
        at = 0
        for number, (scope, inside) in enumerate(zip(self._scopes, ordered, strict=True)):
            scopes[number, :7] = (
                at,
                at + len(inside),
                scope.kind,
                scope.node,
                self._layout.domains[scope.node],
                scope.one.scale if scope.one else 0,
                scope.one.precision if scope.one else 0,
            )
            for here in inside:
                if here.oneof:
                    oneofs.setdefault((number, here.oneof), total + len(oneofs))
                bits, more = defaults[here.enum] if here.enum >= 0 else (0, 0)
                if here.type in (k.STRING, k.BYTES):
                    bits = held.ctypes.data
                fields[at] = self._row(here, oneofs.get((number, here.oneof), -1), bits, more)
                if here.enum >= 0:
                    fields[at, k.ENUM] = starts[here.enum]
                at += 1
        paths = tuple(here.path for inside in ordered for here in inside)
        longest = [max(map(len, named)) // TEXT_SIZE for named in names_of]
        texts = {one.node: longest[one.enum] for inside in ordered for one in inside if one.enum >= 0 <= one.node}
        weights = self._layout.weights(texts)
        seen_size = total + len(oneofs)
        return Program(self._layout, fields, scopes, tables, weights, self._depth_max, seen_size, paths, held)

    def _row(self, one: _Field, oneof: int, bits: int, more: int) -> list[int]:
        layout = self._layout
        wire = 2 if one.packed else _wire(one.type)
        return [
            one.number,
            one.type,
            one.node,
            one.list,
            one.scope,
            one.presence,
            oneof,
            one.packed,
            -1,
            bits,
            more,
            one.flags,
            int(layout.domains[one.node]) if one.node >= 0 else 0,
            int(layout.domains[one.list]) if one.list >= 0 else 0,
            int(layout.opened[one.list]) if one.list >= 0 else 0,
            one.number << 3 | wire,
        ]


def _wire(kind: int) -> int:
    if kind < k.FIXED32:
        return 0
    if kind < k.FIXED64:
        return 5
    return 1 if kind < k.STRING else 2


def _named(enum: EnumDescriptor) -> dict[bytes, int]:
    """Returns the numbers by name; of aliases, the first comes first."""
    return {value.name.encode(): value.number for value in enum.values}


def _enum_tables(names_of: list[dict[bytes, int]], address: int) -> tuple[Longs, list[int], list[tuple[int, int]]]:
    """Returns all tables in one array, the start of each, and the name of zero in each."""
    out: list[int] = []
    starts, zeros = [], []
    for named in names_of:
        located = {}
        for name in named:
            located[name] = (address, len(name))
            address += len(name) + 1
        first: dict[int, bytes] = {}
        for name, number in named.items():
            first.setdefault(number, name)
        size = 1 << (2 * len(named)).bit_length()
        by_number = ((_hash_number(number), number, *located[name]) for number, name in first.items())
        by_name = ((_hash_name(name), number, *located[name]) for name, number in named.items())
        starts.append(len(out))
        zeros.append(located[first[0]] if 0 in first else (0, 0))
        out += [size - 1, *_table(by_number, size), *_table(by_name, size)]
    return np.array(out or [0], np.int64), starts, zeros


def _table(entries: Iterator[tuple[int, int, int, int]], size: int) -> list[int]:
    """Returns a hash table of (number, address, size) with linear probing."""
    rows = [[0, -1, 0] for _ in range(size)]
    for hashed, *row in entries:
        place = (hashed >> 32) & (size - 1)
        while rows[place][1] >= 0:
            place = (place + 1) & (size - 1)
        rows[place] = row
    return [number for row in rows for number in row]


def _hash_number(number: int) -> int:
    return (number & _MASK) * _HASH & _MASK


def _hash_name(name: bytes) -> int:
    hashed = len(name)
    for byte in name:
        hashed = (hashed ^ byte) * _HASH & _MASK
    return hashed
