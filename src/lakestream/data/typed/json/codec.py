"""JSON codec of one shape and one text style, for values with a schema and without."""

import ctypes
import math
import struct
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.aio.cache import weighted_cache
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed import column_buffers
from lakestream.data.typed.codec import TOO_MANY, TOO_MANY_REASON, Decoded
from lakestream.data.typed.column_buffers import ColumnBuffers, Layout
from lakestream.data.typed.json import read_kernels as read
from lakestream.data.typed.json import write_kernels as write
from lakestream.data.typed.json.connect_types import connect_nodes, from_json_types, to_json_types
from lakestream.data.typed.json.program import TYPE_NAMES, Program, program_of
from lakestream.data.typed.json.text_style import Style, read_style
from lakestream.model import KiB, MiB
from lakestream.schemas.json.json_types import JsonTypeUnion, shape_of
from lakestream.schemas.json.schema import read_json_schema
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.types import Struct
from lakestream.schemas.writer_schema import WriterSchema, weight_of_texts

_ONE_NODE: Final = Layout.of(Struct(()))
_ARENA_MIN: Final = 64 * KiB
_CHUNK_MIN: Final = MiB
_ROWS_MIN: Final = 1024
_SLOW_MIN: Final = 1024
_REASONS: Final = {
    read.INVALID_JSON: "invalid JSON",
    read.INVALID_UTF8: "a string in it is not UTF-8",
    read.UNPAIRED_SURROGATE: "a string in it has an unpaired surrogate",
    read.TOO_DEEP: f"the value is nested deeper than {read.DEPTH_MAX} levels",
    read.EXTRA_DATA: "extra data after the JSON value",
    read.DUPLICATE_KEY: "duplicate key",
}


@dataclass(frozen=True, slots=True, eq=False)
class JsonDecoded(Decoded):
    has_unknown_keys: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Values with keys that are not in the shape, so their columns do not restore them."""


class JsonCodec:
    def __init__(self, part: JsonTypeUnion, style: Style = Style()) -> None:  # noqa: B008
        self._shape: Final = shape_of(part)
        self._layout: Final = Layout.of(self._shape)
        self._program: Final[Program] = program_of(part, style, self._layout)
        self._connect_nodes: Final = connect_nodes(self._layout)
        self._rows_each: NDArray[np.float64] = np.zeros(self._layout.domain_count)
        """Rows per value in each domain in the last call: an estimate for the next call."""
        self._unescaped_each = 0.0
        self._written_each = 0.0

    @property
    def shape(self) -> Struct:
        return self._shape

    @property
    def layout(self) -> Layout:
        return self._layout

    def decode(self, values: ByteSpans, slots_max: int | None = None) -> JsonDecoded:
        """Decodes in one pass if lists are about as long as in the last call; otherwise counts their elements first."""
        values = values.first(self._layout.rows_max)
        limit = column_buffers.SLOTS_MAX if slots_max is None else slots_max
        rooms = _likely(self._rows_each, len(values.size), _ROWS_MIN)
        rooms[0] = len(values.size)
        reading = self._read(values, ColumnBuffers.empty(self._layout, self._layout.fitting(rooms)), limit)
        if int(reading.state[read.STOPPED]) == read.NO_ROWS:
            counted = self._read(values, self._shared_slots(values), limit)
            values, rooms = values.first(counted.done), counted.counts
            rooms[0] = counted.done
            reading = self._read(values, ColumnBuffers.empty(self._layout, rooms), read.UNLIMITED, counted)
        if reading.done:
            self._rows_each = reading.counts * 1.1 / reading.done
            self._unescaped_each = 1.1 * int(reading.state[read.ARENA_USED]) / reading.done
        decoded = reading.decoded()
        assert decoded.lacks is not None
        held = from_json_types(decoded.buffers, self._connect_nodes, decoded.lacks)
        return replace(decoded, held=(*decoded.held, *held)) if held else decoded

    def problems(self, values: ByteSpans) -> NDArray[np.int32]:
        return self.checked(values)[0]

    def checked(self, values: ByteSpans) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Returns the problem of each value, and whether it has keys that are not in the shape."""
        reading = self._read(values, self._shared_slots(values), read.UNLIMITED)
        return reading.problems, reading.flags & read.HAS_UNKNOWN != 0

    def _shared_slots(self, values: ByteSpans) -> ColumnBuffers:
        """Allocates buffers in which all nodes share their slots: enough to count rows, and to find problems."""
        # A value has no more elements than bytes.
        rows = max(len(values.size), int(np.maximum(values.size, 0).sum())) + 1
        slots = ColumnBuffers.empty(_ONE_NODE, np.array([rows], np.int64))
        nowhere, rooms = np.zeros(len(self._layout), np.int64), np.full(self._layout.domain_count, rows, np.int64)
        return replace(slots, layout=self._layout, counts=rooms, base=nowhere)

    def _read(
        self, values: ByteSpans, buffers: ColumnBuffers, slots_max: int, counted: "_Reading | None" = None
    ) -> "_Reading":
        """Reads values, again with more space for strings and doubles if it was too small.

        `counted`: an earlier reading of these values; those that had a problem are skipped.
        """
        count, total = len(values.size), int(np.maximum(values.size, 0).sum())
        arena_size, slow_count = int(_likely(self._unescaped_each, count, _ARENA_MIN)), _SLOW_MIN
        while True:
            reading = _Reading(self._program, buffers, count, arena_size, slow_count)
            if counted is not None:
                reading.problems[:], reading.flags[:] = counted.problems, counted.flags
            reading.read(values, slots_max)
            # An escape may need a little more room than its text has.
            growth = max(2.0, 1.2 * count / (reading.done + 1))
            match int(reading.state[read.STOPPED]):
                case read.NO_ARENA:
                    arena_size = min(int(arena_size * growth), 2 * total + 64 * count + 2 * _ARENA_MIN)
                case read.NO_SLOW:
                    slow_count = min(int(slow_count * growth), total + _SLOW_MIN)
                case _:
                    return reading
            buffers.valid[:] = 0

    def encode(self, buffers: ColumnBuffers) -> ByteSpans:
        """Returns the JSON text of each row; null if it has NaN, an infinity or a time that text cannot represent."""
        buffers, _held = to_json_types(buffers, self._connect_nodes)
        count = len(buffers)
        address, size = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        chunks: list[Any] = []
        room, done, program = int(_likely(self._written_each, count, _CHUNK_MIN)), 0, self._program
        while done < count:
            chunk = pa.allocate_buffer(room)
            before = done
            done = write.write_values(
                done,
                count,
                program.is_wrapped,
                program.places,
                program.voids,
                program.write_nodes,
                program.write_keys,
                program.forms,
                program.blob.ctypes.data,
                program.separators,
                program.escapes,
                buffers.base,
                buffers.valid,
                buffers.bits,
                buffers.more,
                chunk.address,
                chunk.address + room,
                address,
                size,
            )
            if done == before:
                room *= 4
                continue
            chunks.append(chunk)
            room = max(room // 4, _CHUNK_MIN)
        if count:
            self._written_each = 1.05 * int(np.maximum(size, 0).sum()) / count
        return ByteSpans(address, size, tuple(chunks))

    def reason(self, problem: int) -> str:
        if problem == TOO_MANY:
            return TOO_MANY_REASON
        if problem < read.WRONG_TYPE:
            return _REASONS.get(problem, "cannot be parsed")
        place, kind = divmod(problem - read.WRONG_TYPE, 8)
        return f"{self._program.names[place] or 'the value'} is of type {TYPE_NAMES[kind]}, which has no column"


def _likely(each: Any, count: int, least: int) -> Any:
    return np.maximum(np.ceil(np.asarray(each) * count), 0).astype(np.int64) + least


class _Reading:
    """One attempt to decode, with limited space."""

    def __init__(self, program: Program, buffers: ColumnBuffers, count: int, arena_size: int, slow_count: int) -> None:
        self.counts: Final = np.zeros(len(buffers.counts), np.int64)
        self.state: Final = np.zeros(read.STATE_WIDTH, np.int64)
        self.done = 0
        """Number of values that were read."""
        self._buffers: Final = buffers
        self._program: Final = program
        self._arena: Final = pa.allocate_buffer(arena_size)
        self._slow: Final = np.empty((slow_count, 3), np.int64)
        self.problems = np.zeros(count, np.int32)
        self.flags = np.zeros(count, np.uint8)

    def read(self, values: ByteSpans, slots_max: int) -> None:
        program, buffers = self._program, self._buffers
        self.done = read.read_values(
            values.address,
            values.size,
            program.is_wrapped,
            program.places,
            program.read_nodes,
            program.read_keys,
            program.table,
            program.blob.ctypes.data,
            program.hints,
            buffers.base,
            buffers.counts,
            self.counts,
            program.weights,
            column_buffers.SLOTS_MAX,
            slots_max,
            buffers.valid,
            buffers.bits,
            buffers.more,
            self._arena.address,
            len(self._arena),
            self._slow,
            self.state,
            self.problems,
            self.flags,
        )
        self.counts[0] = self.done
        self.problems, self.flags = self.problems[: self.done], self.flags[: self.done]

    def decoded(self) -> JsonDecoded:
        """Parses doubles that the kernel left to Python, and returns the result. An infinite double becomes null."""
        buffers, slow = replace(self._buffers, counts=self.counts), self._slow[: int(self.state[read.SLOW_USED])]
        for slot, address, size in slow.tolist():
            number = float(ctypes.string_at(address, size))
            buffers.valid[slot] = math.isfinite(number)
            buffers.bits[slot] = struct.unpack("<q", struct.pack("<d", number))[0]
        unknown, lacks = (self.flags & flag != 0 for flag in (read.HAS_UNKNOWN, read.HAS_NULLED))
        lacks[buffers.values_at(slow[buffers.valid[slow[:, 0]] == 0, 0])] = True
        slots = int(self.counts @ self._program.weights)
        return JsonDecoded(buffers, slots, self.problems, (self._arena,), lacks, unknown)


@weighted_cache(4 * MiB, lambda text, references=(): weight_of_texts(text, references))
def part_of_text(text: str, references: tuple[tuple[str, str], ...] = ()) -> JsonTypeUnion:
    named = tuple(Reference(name, other) for name, other in references)
    return read_json_schema(Source(Format.JSON, text, named)).types


def json_codec(writer: WriterSchema) -> JsonCodec:
    """Returns the codec of a writer schema, for values without prefix. Plain JSON has an inferred schema."""
    return JsonCodec(part_of_text(writer.text, writer.references), read_style(writer.style))
