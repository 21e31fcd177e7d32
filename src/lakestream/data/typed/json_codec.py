"""JSON ⇄ frames, for values with a schema and for plain ones: a codec for one shape, written in one style."""

import ctypes
import math
import struct
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed import kernels_json_read as read
from lakestream.data.typed import kernels_json_write as write
from lakestream.data.typed.codec import Decoded
from lakestream.data.typed.frame import Frame, Layout
from lakestream.data.typed.json_program import TYPE_NAMES, Program, program_of
from lakestream.data.typed.json_style import Style, read_style
from lakestream.data.typed.json_turned import turned_in, turned_nodes, turned_out
from lakestream.model import KiB, MiB
from lakestream.schemas.json.parts import Part, shape_of
from lakestream.schemas.json.schema import read_json_schema
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.shape import Struct
from lakestream.schemas.writers import Writer

_ARENA_MIN: Final = 64 * KiB
_CHUNK_MIN: Final = MiB
_ROWS_MIN: Final = 1024
_SLOW_MIN: Final = 1024
_REASONS: Final = {
    read.NO_JSON: "it is no JSON",
    read.NO_TEXT: "a text in it is no UTF-8",
    read.HALF_A_PAIR: "a text in it has half of a surrogate pair",
    read.DEEP: f"it is nested deeper than {read.DEPTH_MAX} levels",
    read.BEHIND: "something stands behind the JSON",
    read.TWICE: "a key is there twice",
}


@dataclass(frozen=True, slots=True, eq=False)
class JsonDecoded(Decoded):
    strange: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Values with keys that are not in the shape: they do not come back."""


class JsonCodec:
    def __init__(self, part: Part, style: Style = Style()) -> None:  # noqa: B008
        self._shape: Final = shape_of(part)
        self._layout: Final = Layout.of(self._shape)
        self._program: Final[Program] = program_of(part, style, self._layout)
        self._turned: Final = turned_nodes(self._layout)
        self._rows_each: NDArray[np.float64] = np.zeros(self._layout.domain_count)
        """How many rows the last values had in each domain: what is likely enough for the next."""
        self._unescaped_each = 0.0
        self._written_each = 0.0

    @property
    def shape(self) -> Struct:
        return self._shape

    @property
    def layout(self) -> Layout:
        return self._layout

    def decode(self, values: Located) -> JsonDecoded:
        count = len(values.size)
        total = int(np.maximum(values.size, 0).sum())
        rooms = _likely(self._rows_each, count, _ROWS_MIN)
        arena_size = int(_likely(self._unescaped_each, count, _ARENA_MIN))
        slow_count = _SLOW_MIN
        while True:
            rooms[0] = count
            reading = _Reading(self._program, self._layout, rooms, arena_size, slow_count)
            done = reading.read(values)
            stopped = int(reading.state[read.STOPPED])
            if stopped == read.GOES_ON:
                break
            # No value has more of anything than bytes. (An escape may need a little room beyond.)
            growth = max(2.0, 1.2 * count / (done + 1))
            if stopped == read.NO_ROWS:
                grown = np.where(reading.counts >= rooms, rooms * growth, rooms)
                rooms = np.minimum(grown, total + _ROWS_MIN).astype(np.int64)
            elif stopped == read.NO_ARENA:
                arena_size = min(int(arena_size * growth), 2 * total + 64 * count + 2 * _ARENA_MIN)
            else:
                slow_count = min(int(slow_count * growth), total + _SLOW_MIN)
        if count:
            self._rows_each = reading.counts * 1.1 / count
            self._unescaped_each = 1.1 * int(reading.state[read.ARENA_USED]) / count
        decoded = reading.decoded()
        assert decoded.lacks is not None
        held = turned_in(decoded.frame, self._turned, decoded.lacks)
        return replace(decoded, held=(*decoded.held, *held)) if held else decoded

    def encode(self, frame: Frame) -> Located:
        """Null for a row with a double that is no number, or a moment that has no text."""
        frame, _held = turned_out(frame, self._turned)
        count = len(frame)
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
                frame.base,
                frame.valid,
                frame.bits,
                frame.more,
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
        return Located(address, size, tuple(chunks))

    def reason(self, problem: int) -> str:
        if problem < read.MISFIT:
            return _REASONS.get(problem, "it cannot be read")
        place, kind = divmod(problem - read.MISFIT, 8)
        return f"{self._program.names[place] or 'the value'} is of type {TYPE_NAMES[kind]}, which has no column"


def _likely(each: Any, count: int, least: int) -> Any:
    return np.maximum(np.ceil(np.asarray(each) * count), 0).astype(np.int64) + least


class _Reading:
    """One try, with room for so much."""

    def __init__(self, program: Program, layout: Layout, rooms: Longs, arena_size: int, slow_count: int) -> None:
        self.frame: Final = Frame.empty(layout, rooms)
        self.counts: Final = np.zeros(layout.domain_count, np.int64)
        self.counts[0] = rooms[0]
        self.state: Final = np.zeros(read.STATE_WIDTH, np.int64)
        self._program: Final = program
        self._arena: Final = pa.allocate_buffer(arena_size)
        self._slow: Final = np.empty((slow_count, 3), np.int64)
        self._problems: Final = np.zeros(int(rooms[0]), np.int32)
        self._strange: Final = np.zeros(int(rooms[0]), np.uint8)

    def read(self, values: Located) -> int:
        program, frame = self._program, self.frame
        done: int = read.read_values(
            values.address,
            values.size,
            program.is_wrapped,
            program.places,
            program.read_nodes,
            program.read_keys,
            program.table,
            program.blob.ctypes.data,
            program.hints,
            frame.base,
            frame.counts,
            self.counts,
            frame.valid,
            frame.bits,
            frame.more,
            self._arena.address,
            len(self._arena),
            self._slow,
            self.state,
            self._problems,
            self._strange,
        )
        return done

    def decoded(self) -> JsonDecoded:
        """Doubles with more digits than a word holds are read by Python; what is no double is left out."""
        slow = self._slow[: int(self.state[read.SLOW_USED])]
        for slot, address, size in slow.tolist():
            number = float(ctypes.string_at(address, size))
            self.frame.valid[slot] = math.isfinite(number)
            self.frame.bits[slot] = struct.unpack("<q", struct.pack("<d", number))[0]
        frame = replace(self.frame, counts=self.counts)
        unknown, lacks = (self._strange & flag != 0 for flag in (read.HAS_UNKNOWN, read.HAS_NULLED))
        lacks[frame.values_at(slow[frame.valid[slow[:, 0]] == 0, 0])] = True
        return JsonDecoded(frame, self._problems, (self._arena,), lacks, unknown)


@lru_cache(maxsize=64)
def part_of_text(text: str, references: tuple[tuple[str, str], ...] = ()) -> Part:
    named = tuple(Reference(name, other) for name, other in references)
    return read_json_schema(Source(Format.JSON, text, named)).part


def json_codec(writer: Writer) -> JsonCodec:
    """For values behind their frame, if they have one. Plain JSON has a schema as well: the one that was inferred."""
    return JsonCodec(part_of_text(writer.text, writer.references), read_style(writer.style))
