"""Converts column buffers to Arrow columns and back.

Before: a codec, which fills the buffers.  After: Parquet; in reverse order when history is read.

Columns made here have the requested type: bytes are plain (copied into one buffer) or views (not copied). Columns read
here may have any type that a Parquet reader returns, and other programs may have written the files.
"""

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.arrow.types import primitive_type
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed.column_buffers import ColumnBuffers, Layout
from lakestream.data.typed.kernels.arrow import (
    BYTES,
    NARROW,
    OVERFLOW,
    WIDE,
    ends_of,
    find_duplicate_keys,
    find_windows,
    list_ends,
    put_bytes,
    put_fixed,
    put_views,
)
from lakestream.errors import Corrupt
from lakestream.schemas.types import Kind, ListOf, MapOf, Primitive, Struct, Type

_Number = TypeVar("_Number", bound=np.generic)

_VIEWS: Final = {Kind.STRING: pa.string_view(), Kind.BINARY: pa.binary_view()}
_NUMBERS: Final[dict[Kind, Any]] = {
    Kind.INT: np.int32,
    Kind.LONG: np.int64,
    Kind.FLOAT: np.int32,
    Kind.DOUBLE: np.int64,
    Kind.DATE: np.int32,
    Kind.TIME: np.int64,
    Kind.TIMESTAMP: np.int64,
    Kind.TIMESTAMPTZ: np.int64,
}
"""Integer type with the width that the kind has in Arrow."""
_BYTES: Final = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    *(pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
)
_WITH_BYTES: Final = (Kind.STRING, Kind.BINARY, Kind.FIXED, Kind.UUID)
_VIEW_SIZE, _DECIMAL_SIZE, _UUID_SIZE = 16, 16, 16


def arrow_type(kind: Type, *, views: bool = False) -> Any:
    """Returns the default Arrow type of a shape."""
    match kind:
        case Struct(fields):
            return pa.struct([pa.field(field.name, arrow_type(field.type, views=views)) for field in fields])
        case ListOf(element):
            return pa.list_(pa.field("element", arrow_type(element, views=views)))
        case MapOf(key, value):
            return pa.map_(arrow_type(key, views=views), arrow_type(value, views=views))
        case Primitive(one):
            return _VIEWS[one] if views and one in _VIEWS else primitive_type(kind)


# Column buffers to Arrow


def to_arrow(buffers: ColumnBuffers, kind: Any = None, *, rows: Longs | None = None, held: tuple[Any, ...] = ()) -> Any:
    """Returns a `pyarrow.StructArray` with the columns of all rows, or of the given rows in the given order.

    `kind`: the requested type, a struct of the same form; its fields may have field ids and other names. A map with a
    duplicate key becomes null. `held`: owners of the memory at the addresses; views keep references to them.
    """
    out = _ArrowWriter(buffers, held)
    return out.array(0, kind if kind is not None else arrow_type(buffers.layout.shape), rows)


@dataclass(frozen=True, slots=True)
class _ArrowWriter:
    buffers: ColumnBuffers
    held: tuple[Any, ...]

    def array(self, node: int, kind: Any, rows: Longs | None) -> Any:
        shape = self.buffers.layout.types[node]
        valid = self._of(self.buffers.valid, node, rows)
        match shape:
            case Struct():
                children = self._fields(node, kind, rows)
                return _array(kind, valid, [], children)
            case ListOf() | MapOf():
                return self._lists(node, kind, rows, valid)
            case Primitive():
                bits, more = self._of(self.buffers.bits, node, rows), self._of(self.buffers.more, node, rows)
                return self._leaf(shape, kind, valid, bits, more)

    def _of(self, slots: NDArray[_Number], node: int, rows: Longs | None) -> NDArray[_Number]:
        base = int(self.buffers.base[node])
        if rows is not None:
            return slots[base + rows]
        return slots[base : base + int(self.buffers.counts[self.buffers.layout.domains[node]])]

    def _fields(self, node: int, kind: Any, rows: Longs | None) -> list[Any]:
        found, child = [], node + 1
        for place in range(kind.num_fields):
            found.append(self.array(child, kind.field(place).type, rows))
            child = int(self.buffers.layout.ends[child])
        return found

    def _lists(self, node: int, kind: Any, rows: Longs | None, valid: NDArray[np.uint8]) -> Any:
        firsts, counts = self._of(self.buffers.bits, node, rows), self._of(self.buffers.more, node, rows)
        if isinstance(self.buffers.layout.types[node], MapOf):
            valid = self._without_duplicates(node, valid, firsts, counts)
        ends = _room(len(valid) + 1, np.int32)
        below = None
        if list_ends(valid, firsts, counts, ends) == OVERFLOW:
            below = _adjacent_rows(valid, firsts, counts, ends)
        if isinstance(self.buffers.layout.types[node], ListOf):
            children = [self.array(node + 1, kind.value_type, below)]
        else:
            keys, values = self.array(node + 1, kind.key_type, below), self.array(node + 2, kind.item_type, below)
            children = [pa.StructArray.from_arrays([keys, values], fields=[kind.key_field, kind.item_field])]
        return _array(kind, valid, [pa.py_buffer(ends)], children)

    def _without_duplicates(
        self, node: int, valid: NDArray[np.uint8], firsts: Longs, counts: Longs
    ) -> NDArray[np.uint8]:
        """Makes maps with duplicate keys null: some engines (DuckDB) fail on the whole table if it has one."""
        key = self.buffers.layout.types[node + 1]
        assert isinstance(key, Primitive), "keys of maps are no structs"
        how = BYTES if key.kind in _WITH_BYTES else WIDE if key.kind is Kind.DECIMAL else NARROW
        largest = int(np.where(valid, counts, 0).max(initial=0))
        if largest < 2:
            return valid
        bits, more = self._of(self.buffers.bits, node + 1, None), self._of(self.buffers.more, node + 1, None)
        duplicates = np.zeros(len(valid), np.uint8)
        found = find_duplicate_keys(
            valid, firsts, counts, bits, more, how, 1 << (2 * largest - 1).bit_length(), duplicates
        )
        return valid & (1 - duplicates) if found else valid

    def _leaf(self, shape: Primitive, kind: Any, valid: NDArray[np.uint8], bits: Longs, more: Longs) -> Any:
        match shape.kind:
            case Kind.BOOLEAN:
                return _array(kind, valid, [_packed(bits != 0)])
            case Kind.DECIMAL:
                return _array(kind, valid, [pa.py_buffer(np.stack((bits, more), axis=1))])
            case Kind.FIXED | Kind.UUID:
                width = _UUID_SIZE if shape.kind is Kind.UUID else shape.length
                buffer = pa.allocate_buffer(width * len(valid))
                put_fixed(valid, bits, width, buffer.address)
                return _array(kind, valid, [buffer])
            case Kind.STRING | Kind.BINARY:
                return self._bytes(kind, valid, bits, more)
            case number:
                return _array(kind, valid, [pa.py_buffer(bits.astype(_NUMBERS[number]))])

    def _bytes(self, kind: Any, valid: NDArray[np.uint8], addresses: Longs, sizes: Longs) -> Any:
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            return self._views(kind, valid, addresses, sizes)
        ends = _room(len(valid) + 1, np.int32)
        total = ends_of(valid, sizes, ends)
        if total == OVERFLOW:
            raise ValueError("more than 2 GiB of text or bytes in one column: convert fewer rows per call")
        buffer = pa.allocate_buffer(total)
        put_bytes(valid, addresses, ends, buffer.address)
        return _array(kind, valid, [pa.py_buffer(ends), buffer])

    def _views(self, kind: Any, valid: NDArray[np.uint8], addresses: Longs, sizes: Longs) -> Any:
        room, found = np.empty((64, 3), np.int64), OVERFLOW
        while (found := find_windows(valid, addresses, sizes, room)) == OVERFLOW:
            room = np.empty((4 * len(room), 3), np.int64)
        windows = room[:found]
        views = np.zeros(_VIEW_SIZE * len(valid), np.uint8)
        put_views(valid, addresses, sizes, windows, pa.py_buffer(views).address)
        buffers = [pa.foreign_buffer(first, end - first, self.held) for _, first, end in windows.tolist()]
        return _array(kind, valid, [pa.py_buffer(views), *buffers])


def _adjacent_rows(valid: NDArray[np.uint8], firsts: Longs, counts: Longs, ends: NDArray[np.int32]) -> Longs:
    """Returns the rows of lists that are not adjacent, list after list, and fills `ends` with their offsets."""
    sizes = np.where(valid, counts, 0)
    total = np.cumsum(sizes)
    if total.size and total[-1] > np.iinfo(np.int32).max:
        raise ValueError("more than 2^31 elements in one column of lists: convert fewer rows per call")
    ends[0], ends[1:] = 0, total
    starts = np.repeat(np.where(valid, firsts, 0) - (total - sizes), sizes)
    return starts + np.arange(len(starts), dtype=np.int64)


def _array(kind: Any, valid: NDArray[np.uint8], buffers: list[Any], children: list[Any] | None = None) -> Any:
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = _packed(valid) if nulls else None
    return pa.Array.from_buffers(kind, len(valid), [bitmap, *buffers], nulls, children=children)


def _packed(flags: NDArray[Any]) -> Any:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def _room(count: int, kind: type[_Number]) -> NDArray[_Number]:
    """Allocates from Arrow's pool, which reuses pages: fresh pages cost as much as filling them."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


# Arrow to column buffers


@dataclass(frozen=True, slots=True, eq=False)
class BuffersFromArrow:
    buffers: ColumnBuffers
    held: tuple[Any, ...]
    """Owners of the memory at the addresses in the buffers."""


@dataclass(slots=True, eq=False)
class _Slots:
    """Slots of one node."""

    valid: NDArray[np.uint8]
    bits: NDArray[Any] | None = None
    """Integers of any width; copying them into the buffers widens them."""
    more: Longs | None = None


def from_arrow(array: Any, layout: Layout) -> BuffersFromArrow:
    """Returns the column buffers of a `pyarrow.StructArray` whose fields are those of a layout, in the same order.

    Corrupt: a field has a type that cannot be converted.
    """
    into = _ArrowReader(
        layout, [_Slots(np.empty(0, np.uint8))] * len(layout), np.zeros(layout.domain_count, np.int64), []
    )
    into.read(array, 0, None, "")
    buffers = ColumnBuffers.empty(layout, into.counts)
    for node, slots in enumerate(into.slots):
        if not slots.valid.any():
            continue  # as they are: without writing to them they take no memory
        start, end = int(buffers.base[node]), int(buffers.base[node]) + len(slots.valid)
        buffers.valid[start:end] = slots.valid
        if slots.bits is not None:
            buffers.bits[start:end] = slots.bits
        if slots.more is not None:
            buffers.more[start:end] = slots.more
    return BuffersFromArrow(buffers, tuple(into.held))


def slots_of(array: Any) -> Longs | int:
    """Returns the slots of each row of a column, with those of its lists; one number if all rows have as many."""
    kind = array.type
    if pa.types.is_struct(kind):
        return 1 + sum((slots_of(array.field(place)) for place in range(kind.num_fields)), 0)
    if pa.types.is_map(kind):
        below = slots_of(array.keys) + slots_of(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        below = slots_of(array.values)
    else:
        return 1
    bounds = np.asarray(array.offsets).astype(np.int64)
    if isinstance(below, int):
        return 1 + below * np.diff(bounds)
    before = np.concatenate(([0], np.cumsum(below)))
    return 1 + before[bounds[1:]] - before[bounds[:-1]]


@dataclass(slots=True, eq=False)
class _ArrowReader:
    layout: Layout
    slots: list[_Slots]
    counts: Longs
    held: list[Any]

    def read(self, array: Any, node: int, parent: NDArray[np.uint8] | None, path: str) -> None:
        """Reads an array and its children. `parent`: rows in which the enclosing struct is not null; None: all."""
        shape = self.layout.types[node]
        array = _plain(array)
        valid = _valid(array)
        if parent is not None:
            valid &= parent
        self.counts[self.layout.domains[node]] = len(valid)
        self.slots[node] = slots = _Slots(valid)
        try:
            match shape:
                case Struct():
                    self._struct(array, shape, node, slots, path)
                case ListOf() | MapOf():
                    self._lists(array, shape, node, slots, path)
                case Primitive():
                    self._leaf(array, shape, slots)
        except (pa.ArrowException, TypeError) as error:
            named = f"column {path}" if path else "the row"
            raise Corrupt(f"{named} is {array.type}, which cannot be read as {_type_name(shape)}: {error}") from error

    def _struct(self, array: Any, shape: Struct, node: int, slots: _Slots, path: str) -> None:
        if not pa.types.is_struct(array.type) or array.type.num_fields != len(shape.fields):
            raise TypeError("not a struct with these fields")
        child = node + 1
        for place, field in enumerate(shape.fields):
            self.read(array.field(place), child, slots.valid, f"{path}.{field.name}" if path else field.name)
            child = int(self.layout.ends[child])

    def _lists(self, array: Any, shape: ListOf | MapOf, node: int, slots: _Slots, path: str) -> None:
        bounds, (start, end) = _bounds(array, shape)
        slots.bits = bounds[:-1] - start
        slots.more = np.where(slots.valid, np.diff(bounds), 0)
        if isinstance(shape, ListOf):
            below = [(array.values, "[]")]
        else:
            entries = array.values
            below = [(entries.field(0), "{key}"), (entries.field(1), "{}")]
        child = node + 1
        child_valid = None if slots.valid.all() else np.repeat(slots.valid, np.diff(bounds))
        for values, name in below:
            self.read(values.slice(start, end - start), child, child_valid, path + name)
            child = int(self.layout.ends[child])

    def _leaf(self, array: Any, shape: Primitive, slots: _Slots) -> None:
        match shape.kind:
            case Kind.STRING | Kind.BINARY:
                slots.bits, slots.more = self._bytes(array)
            case Kind.FIXED | Kind.UUID:
                slots.bits, slots.more = self._fixed(array, _UUID_SIZE if shape.kind is Kind.UUID else shape.length)
            case Kind.DECIMAL:
                whole = _narrowed(array, pa.decimal128(shape.precision, shape.scale), slots.valid)
                limbs = _buffer(whole, _DECIMAL_SIZE).view(np.int64).reshape(-1, 2)
                slots.bits, slots.more = limbs[:, 0], limbs[:, 1]
            case Kind.FLOAT | Kind.DOUBLE:
                width = 4 if shape.kind is Kind.FLOAT else 8
                bits = _buffer(_narrowed(array, primitive_type(shape), slots.valid), width)
                slots.bits = bits.view(np.int32 if width == 4 else np.int64)
            case _:
                slots.bits = _numbers(_narrowed(array, primitive_type(shape), slots.valid))

    def _bytes(self, array: Any) -> tuple[Longs, Longs]:
        if not any(is_one(array.type) for is_one in _BYTES):
            raise TypeError("not a column of strings or bytes")
        located = ByteSpans.of(array)
        self.held.append(located.held)
        return located.address, located.size

    def _fixed(self, array: Any, width: int) -> tuple[Longs, Longs]:
        if not pa.types.is_fixed_size_binary(array.type):
            addresses, sizes = self._bytes(array)
            if (sizes[sizes >= 0] != width).any():
                raise TypeError(f"not all values have {width} bytes")
            return addresses, sizes
        if array.type.byte_width != width:
            raise TypeError(f"not all values have {width} bytes")
        self.held.append(array)
        data = array.buffers()[1]
        address = data.address if data is not None else 0
        places = np.arange(array.offset, array.offset + len(array), dtype=np.int64)
        return address + width * places, np.full(len(array), width, np.int64)


def _narrowed(array: Any, kind: Any, valid: NDArray[np.uint8]) -> Any:
    """Casts a column to the type of the writer schema; it may have been widened later.

    Rows that are not valid here belong to other writer schemas and may not fit the type, so they become null first.
    """
    if array.type == kind:
        return array
    if not valid.all():
        array = pc.if_else(pa.array(valid.astype(np.bool_)), array, pa.scalar(None, array.type))
    narrowed = array.cast(kind)
    if pa.types.is_float64(array.type) and not _are_equal(array, narrowed.cast(array.type)):
        raise TypeError("some values have more digits")  # all other casts raise instead of rounding
    return narrowed


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether all elements that are not null are equal; NaN equals NaN."""
    same = pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(pc.all(same, min_count=0).as_py())


def _plain(array: Any) -> Any:
    """Returns the array without extension type and dictionary encoding."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array


def _valid(array: Any) -> NDArray[np.uint8]:
    if not array.null_count:
        return np.ones(len(array), np.uint8)
    return np.asarray(array.is_valid()).astype(np.uint8)


def _bounds(array: Any, shape: ListOf | MapOf) -> tuple[Longs, tuple[int, int]]:
    """Returns the offsets of lists, and the first and last of these: an array may be a slice of a larger one."""
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not (is_list if isinstance(shape, ListOf) else pa.types.is_map(kind)):
        raise TypeError("not a list or map of this form")
    bounds = np.asarray(array.offsets).astype(np.int64)
    if not bounds.size:
        bounds = np.zeros(1, np.int64)
    return bounds, (int(bounds[0]), int(bounds[-1]))


def _buffer(array: Any, width: int) -> NDArray[np.uint8]:
    """Returns the data buffer of a column with values of this width, without the offset of a slice."""
    data = array.buffers()[1]
    if data is None:
        return np.zeros(width * len(array), np.uint8)
    return np.frombuffer(data, np.uint8)[width * array.offset : width * (array.offset + len(array))]


def _numbers(array: Any) -> NDArray[Any]:
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    width = array.type.bit_width // 8
    return _buffer(array, width).view({1: np.int8, 4: np.int32, 8: np.int64}[width])


def _type_name(shape: Type) -> str:
    match shape:
        case Struct():
            return "a struct"
        case ListOf():
            return "a list"
        case MapOf():
            return "a map"
        case Primitive():
            return str(shape)
