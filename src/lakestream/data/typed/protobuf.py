"""Protobuf messages ⇄ frames. The tables are made by protobuf_program.py, the work is done by kernels_protobuf.py."""

import ctypes
from dataclasses import replace
from typing import Final

import numpy as np
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed import kernels_protobuf as k
from lakestream.data.typed.codec import Decoded
from lakestream.data.typed.frame import KINDS, Frame, Layout
from lakestream.data.typed.protobuf_maps import values_with_twins
from lakestream.data.typed.protobuf_program import Program
from lakestream.schemas.protobuf.schema import ProtobufSchema
from lakestream.schemas.shape import Kind, Struct

SLOTS_MAX: Final = 1 << 27
"""Of all lists that are decoded at once. A message of two bytes may have a thousand columns."""

_PROBLEMS: Final = {
    k.CUT_OFF: "it ends inside of a field",
    k.VARINT: "a number has more than ten bytes, or a length or tag more than five",
    k.TAG_WRONG: "it has a field without a number, or of no wire type",
    k.LENGTH: "a field is longer than what it is in",
    k.GROUP: "a group is not closed, was not opened, or is nested too deep",
    k.NOT_TEXT: "its text is not UTF-8",
    k.PACKED_WRONG: "its packed numbers do not fit into its length",
    k.TOO_MANY: "its lists have more elements of more columns than can be decoded at once",
    k.IRREGULAR: "it has a field twice, and Protobuf's own library does not read it either",
}

_ROOM: Final = np.full(3 + len(Kind), 15, np.int64)
"""Bytes that a value of each kind of node takes at most, with its tag and length, beyond what text and bytes have."""
_ROOM[[KINDS[Kind.TIMESTAMPTZ], KINDS[Kind.DATE], KINDS[Kind.TIME], KINDS[Kind.DECIMAL]]] = 64
_ROOM[:3] = 20
_SPARE: Final = 256
_ROOMY: Final = 1.5


class ProtobufCodec:
    def __init__(self, schema: ProtobufSchema) -> None:
        """Rejected: the message has no columns, or too many."""
        self.shape: Struct = schema.shape()
        self.layout: Final = Layout.of(self.shape)
        self._program = Program.of(schema.descriptor, self.layout)
        self._guess = np.ones(self.layout.domain_count)
        """How many rows a value has in each domain."""
        self._class = message_factory.GetMessageClass(schema.descriptor)

    def decode(self, values: Located) -> Decoded:
        decoded = self._decoded(values)
        odd = (decoded.problems == k.IRREGULAR) | values_with_twins(decoded.frame)
        return self._decoded(self._merged(values, np.flatnonzero(odd))) if odd.any() else decoded

    def _decoded(self, values: Located) -> Decoded:
        """Lists are guessed to be about as long as those before; where that is wrong, they are counted first."""
        rows = values.size.size
        problems, used = np.zeros(rows, np.int32), np.zeros(self.layout.domain_count, np.int64)
        frame = _roomy(self.layout, rows, self._guess)
        if not self._read(values, problems, used, frame, k.LOOK | k.FILL):
            problems[:] = 0
            self._read(values, problems, used, Frame.empty(self.layout, np.zeros_like(used)), k.LOOK)
            used[0] = rows
            frame = Frame.empty(self.layout, used.copy())
            self._read(values, problems, used, frame, k.FILL)
        used[0] = rows
        self._guess = used / max(1, rows)
        return Decoded(replace(frame, counts=used), problems, (values.held, self._program))

    def _read(self, values: Located, problems: NDArray[np.int32], used: Longs, frame: Frame, steps: int) -> bool:
        program = self._program
        return k.read_messages(
            values.address,
            values.size,
            program.fields,
            program.scopes,
            program.enums,
            self.layout.domains,
            program.widths,
            program.depth_max,
            program.seen_size,
            SLOTS_MAX,
            steps,
            problems,
            used,
            frame.counts,
            frame.base,
            frame.valid,
            frame.bits,
            frame.more,
        )

    def _merged(self, values: Located, rows: Longs) -> Located:
        """Messages with fields in several pieces, seldom, each written anew by the library that says what they mean."""
        address, size, held = values.address.copy(), values.size.copy(), []
        for row in rows.tolist():
            try:
                message = self._class.FromString(ctypes.string_at(int(address[row]), int(size[row])))
            except DecodeError:
                continue
            message.DiscardUnknownFields()  # Among them are known numbers that have no name, out of their place.
            anew = np.frombuffer(message.SerializePartialToString() + b"\0", np.uint8)
            address[row], size[row] = anew.ctypes.data, anew.size - 1
            held.append(anew)
        return Located(address, size, (*values.held, *held))

    def encode(self, frame: Frame) -> Located:
        program, rows = self._program, len(frame)
        address, size = np.zeros(rows, np.int64), np.full(rows, -1, np.int64)
        room = np.empty(self._room(frame), np.uint8)
        left = k.write_messages(
            program.fields,
            program.scopes,
            program.enums,
            program.depth_max,
            frame.counts,
            frame.base,
            frame.valid,
            frame.bits,
            frame.more,
            room.ctypes.data,
            room.size,
            address,
            size,
        )
        assert left >= 0, "the room is made for the longest way to write these rows, and lists lie in their domain"
        return Located(address, size, (room,))

    def _room(self, frame: Frame) -> int:
        """At most. What is not written to is no memory."""
        layout, needed = self.layout, _SPARE
        for node, count in enumerate(frame.counts[layout.domains].tolist()):
            kind, base = int(layout.kinds[node]), int(frame.base[node])
            needed += count * int(_ROOM[kind])
            if kind in (KINDS[Kind.STRING], KINDS[Kind.BINARY]):
                sizes = frame.more[base : base + count]
                needed += int(sizes[frame.valid[base : base + count] != 0].sum())
        return needed

    def reason(self, problem: int) -> str:
        said = _PROBLEMS[problem & (1 << k.PROBLEM_BITS) - 1]
        field = problem >> k.PROBLEM_BITS
        return f"field {self._program.paths[field - 1]}: {said}" if field else said


def _roomy(layout: Layout, rows: int, guess: NDArray[np.float64]) -> Frame:
    """A frame that may have more rows than are used. Pages that are not written to are no memory."""
    room = (rows * guess * _ROOMY).astype(np.int64) + _SPARE
    np.minimum(room, SLOTS_MAX // len(layout), out=room)
    room[0] = rows
    return Frame.empty(layout, room)
