"""Protobuf codec. program.py makes the tables of a message, kernels.py decodes and encodes with them.

A map with a duplicate key is merged by Google's library first: in Protobuf the last entry counts.
"""

import ctypes
from dataclasses import replace
from typing import Final

import numpy as np
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed import column_buffers
from lakestream.data.typed.codec import TOO_MANY, TOO_MANY_REASON, Decoded
from lakestream.data.typed.column_buffers import KINDS, MAP, ColumnBuffers, Layout
from lakestream.data.typed.kernels.arrow import BYTES, NARROW, WIDE, find_duplicate_keys
from lakestream.data.typed.protobuf import kernels as k
from lakestream.data.typed.protobuf.program import Program
from lakestream.schemas.protobuf.schema import ProtobufSchema
from lakestream.schemas.types import Kind, Primitive, Struct

_HOW: Final = {Kind.STRING: BYTES, Kind.DECIMAL: WIDE}


def values_with_duplicate_keys(buffers: ColumnBuffers) -> NDArray[np.bool_]:
    """Returns the values that have a map with a duplicate key. The rows must be in the order of their values."""
    layout = buffers.layout
    found = np.zeros(len(buffers), np.bool_)
    owners: dict[int, Longs] = {0: np.arange(len(buffers))}
    for node in np.flatnonzero(layout.opened >= 0).tolist():
        slots = slice(int(buffers.base[node]), int(buffers.base[node]) + int(buffers.counts[layout.domains[node]]))
        valid, firsts, counts = buffers.valid[slots], buffers.bits[slots], buffers.more[slots]
        sizes = np.where(valid, counts, 0)
        row_owners = owners[int(layout.domains[node])]
        owners[int(layout.opened[node])] = np.repeat(row_owners, sizes)
        if layout.kinds[node] == MAP and sizes.max(initial=0) > 1:
            found[row_owners[_duplicates(buffers, node, valid, firsts, counts, int(sizes.max())) != 0]] = True
    return found


def _duplicates(
    buffers: ColumnBuffers, node: int, valid: NDArray[np.uint8], firsts: Longs, counts: Longs, largest: int
) -> NDArray[np.uint8]:
    """Returns the rows of a map node that have a duplicate key."""
    key = buffers.layout.types[node + 1]
    assert isinstance(key, Primitive), "keys of maps are no structs"
    slots = slice(
        int(buffers.base[node + 1]), int(buffers.base[node + 1]) + int(buffers.counts[buffers.layout.opened[node]])
    )
    duplicates = np.zeros(valid.size, np.uint8)
    room = 1 << (2 * largest - 1).bit_length()
    find_duplicate_keys(
        valid, firsts, counts, buffers.bits[slots], buffers.more[slots], _HOW.get(key.kind, NARROW), room, duplicates
    )
    return duplicates


_PROBLEMS: Final = {
    k.CUT_OFF: "the value is truncated inside a field",
    k.VARINT: "a varint has more than ten bytes, or a length or tag more than five",
    k.TAG_WRONG: "a tag has an invalid field number or wire type",
    k.LENGTH: "a field is longer than its message",
    k.GROUP: "a group is not closed, was not opened, or is nested too deep",
    k.NOT_TEXT: "the string is not UTF-8",
    k.PACKED_WRONG: "the packed numbers do not match their length",
    k.NOT_MERGED: "a field is duplicate, and the message is too large to be merged",
    k.IRREGULAR: "a field is duplicate, and Google's Protobuf library cannot parse the message either",
}

_ROOM: Final = np.full(3 + len(Kind), 15, np.int64)
"""Maximum bytes of a value of each kind of node, with tag and length, without the content of strings and bytes."""
_ROOM[[KINDS[Kind.TIMESTAMPTZ], KINDS[Kind.DATE], KINDS[Kind.TIME], KINDS[Kind.DECIMAL]]] = 64
_ROOM[:3] = 20
_SPARE: Final = 256
_ROOMY: Final = 1.5


class ProtobufCodec:
    def __init__(self, schema: ProtobufSchema) -> None:
        """Rejected: the message has no columns, or too many of them."""
        self.shape: Struct = schema.shape()
        self.layout: Final = Layout.of(self.shape)
        self._program = Program.of(schema.descriptor, self.layout)
        self._guess = np.ones(self.layout.domain_count)
        """Estimated rows per value in each domain."""
        self._class = message_factory.GetMessageClass(schema.descriptor)
        self._nowhere = ColumnBuffers.empty(self.layout, np.zeros(self.layout.domain_count, np.int64))
        self._fields_max = _fields_max(schema.descriptor)

    def decode(self, values: ByteSpans, slots_max: int | None = None) -> Decoded:
        limit = column_buffers.SLOTS_MAX if slots_max is None else slots_max
        decoded = self._decoded(values.first(self.layout.rows_max), limit)
        odd = (decoded.problems == k.IRREGULAR) | values_with_duplicate_keys(decoded.buffers)
        if not odd.any():
            return decoded
        values = values.first(odd.size)
        merged = self._decoded(self._merged(values, np.flatnonzero(odd)), limit)
        _name_unmerged(merged.problems, values.first(merged.problems.size), self._mergeable_size)
        return merged

    def problems(self, values: ByteSpans) -> NDArray[np.int32]:
        found = self._looked_at(values, k.UNLIMITED)[0]
        if (odd := found == k.IRREGULAR).any():
            found = self._looked_at(self._merged(values, np.flatnonzero(odd)), k.UNLIMITED)[0]
            _name_unmerged(found, values, self._mergeable_size)
        return found

    def _decoded(self, values: ByteSpans, slots_max: int) -> Decoded:
        """Decodes in one pass if lists are about as long as in the last call; otherwise counts their elements first."""
        rows = values.size.size
        problems, used = np.zeros(rows, np.int32), np.zeros(self.layout.domain_count, np.int64)
        buffers = _roomy(self.layout, rows, self._guess)
        done = self._read(values, problems, used, buffers, k.LOOK | k.FILL, slots_max)
        if done == k.FULL:
            problems, used = self._looked_at(values, slots_max)
            done = used[0] = problems.size
            buffers = ColumnBuffers.empty(self.layout, used.copy())
            self._read(values.first(done), problems, used, buffers, k.FILL, k.UNLIMITED)
        used[0] = done
        self._guess = used / max(1, done)
        slots = int(used @ self._program.weights)
        return Decoded(replace(buffers, counts=used), slots, problems[:done], (values.held, self._program))

    def _looked_at(self, values: ByteSpans, slots_max: int) -> tuple[NDArray[np.int32], Longs]:
        """Returns the problems of the first values, as many as have so many slots, and their rows of each domain."""
        problems, used = np.zeros(values.size.size, np.int32), np.zeros(self.layout.domain_count, np.int64)
        done = self._read(values, problems, used, self._nowhere, k.LOOK, slots_max)
        return problems[:done], used

    def _read(
        self,
        values: ByteSpans,
        problems: NDArray[np.int32],
        used: Longs,
        buffers: ColumnBuffers,
        steps: int,
        slots_max: int,
    ) -> int:
        """Returns how many of the values have at most `slots_max` slots; k.FULL: the buffers are too small."""
        program = self._program
        done: int = k.read_messages(
            values.address,
            values.size,
            program.fields,
            program.scopes,
            program.enums,
            self.layout.domains,
            program.weights,
            program.depth_max,
            program.seen_size,
            column_buffers.SLOTS_MAX,
            slots_max,
            steps,
            problems,
            used,
            buffers.counts,
            buffers.base,
            buffers.valid,
            buffers.bits,
            buffers.more,
        )
        return done

    def _merged(self, values: ByteSpans, rows: Longs) -> ByteSpans:
        """Returns the values with duplicate fields merged: these few messages are re-encoded by Google's library."""
        address, size, held = values.address.copy(), values.size.copy(), []
        for row in rows[values.size[rows] <= self._mergeable_size].tolist():
            try:
                message = self._class.FromString(ctypes.string_at(int(address[row]), int(size[row])))
            except DecodeError:
                continue
            message.DiscardUnknownFields()  # these include enum numbers without a name, out of order
            encoded = np.frombuffer(message.SerializePartialToString() + b"\0", np.uint8)
            address[row], size[row] = encoded.ctypes.data, encoded.size - 1
            held.append(encoded)
        return ByteSpans(address, size, (*values.held, *held))

    @property
    def _mergeable_size(self) -> int:
        """The largest message that is merged: in Google's library, two bytes may be a message with all its fields."""
        return 2 * column_buffers.SLOTS_MAX // self._fields_max

    def encode(self, buffers: ColumnBuffers) -> ByteSpans:
        program, rows = self._program, len(buffers)
        address, size = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
        room = np.empty(self._room(buffers), np.uint8)
        left = k.write_messages(
            program.fields,
            program.scopes,
            program.enums,
            program.depth_max,
            buffers.counts,
            buffers.base,
            buffers.valid,
            buffers.bits,
            buffers.more,
            room.ctypes.data,
            room.size,
            address,
            size,
        )
        assert left >= 0, "the buffer fits the longest encoding of these rows, and lists are within their domain"
        return ByteSpans(address, size, (room,))

    def _room(self, buffers: ColumnBuffers) -> int:
        """Returns the maximum size of the encoded rows. Pages that are not written to take no memory."""
        layout, needed = self.layout, _SPARE
        for node, count in enumerate(buffers.counts[layout.domains].tolist()):
            kind, base = int(layout.kinds[node]), int(buffers.base[node])
            needed += count * int(_ROOM[kind])
            if kind in (KINDS[Kind.STRING], KINDS[Kind.BINARY]):
                sizes = buffers.more[base : base + count]
                needed += int(sizes[buffers.valid[base : base + count] != 0].sum())
        return needed

    def reason(self, problem: int) -> str:
        if problem == TOO_MANY:
            return TOO_MANY_REASON
        reason = _PROBLEMS[problem & (1 << k.PROBLEM_BITS) - 1]
        field = problem >> k.PROBLEM_BITS
        return f"field {self._program.paths[field - 1]}: {reason}" if field else reason


def _roomy(layout: Layout, rows: int, guess: NDArray[np.float64]) -> ColumnBuffers:
    """Allocates buffers with spare rows. Pages that are not written to take no memory."""
    room = (rows * guess * _ROOMY).astype(np.int64) + _SPARE
    room[0] = rows
    return ColumnBuffers.empty(layout, layout.fitting(room))


def _fields_max(message: Descriptor) -> int:
    """Returns the number of fields of the largest of a message and the messages in it, at any depth."""
    found, left = {message.full_name: len(message.fields)}, [message]
    while left:
        for field in left.pop().fields:
            below = field.message_type
            if below is not None and below.full_name not in found:
                found[below.full_name] = len(below.fields)
                left.append(below)
    return max(1, *found.values())


def _name_unmerged(problems: NDArray[np.int32], values: ByteSpans, size_max: int) -> None:
    """Sets the problem of messages that were too large to be merged."""
    problems[(problems == k.IRREGULAR) & (values.size > size_max)] = k.NOT_MERGED
