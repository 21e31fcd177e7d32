"""Avro's values to frames and back. `avro_program.py` makes a program of the schema, `kernels_avro.py` follows it.

Written in the one way that Java, Python and JavaScript write: shortest numbers, a list in one block. What came in
another way means the same and is not the same; such values keep their bytes.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed import kernels_avro as k
from lakestream.data.typed.avro_program import Program, program_of
from lakestream.data.typed.codec import Decoded
from lakestream.data.typed.frame import KINDS, Frame
from lakestream.model import MiB
from lakestream.schemas.avro.schema import AvroSchema
from lakestream.schemas.shape import Kind, Struct

_REASONS: Final = {
    k.CUT_OFF: "it ends too early",
    k.TOO_WIDE: "the number is wider than its type",
    k.LENGTH: "the length is none, or more than there is",
    k.NOT_TEXT: "it is no text (UTF-8)",
    k.NOT_BOOLEAN: "it is neither true nor false",
    k.NO_SYMBOL: "the enum has no such symbol",
    k.NO_BRANCH: "the union has no such branch",
    k.TOO_DEEP: f"it is nested deeper than {k.DEPTH_MAX} levels",
    k.LEFT_OVER: "bytes are left over behind the value: it is of another schema",
}
_UUID_SIZE: Final = 16
_ROOM_MIN: Final = 4096
_ROOM_MAX: Final = 4096 * MiB
_BYTES_A_SLOT: Final = 8
_WITH_BYTES: Final = tuple(KINDS[kind] for kind in (Kind.STRING, Kind.BINARY, Kind.FIXED))


class AvroCodec:
    def __init__(self, schema: AvroSchema) -> None:
        self._program: Program = program_of(schema.type)
        # The texts of all symbols, one behind the other: rows point into them.
        self._texts = pa.py_buffer(b"".join(self._program.symbols) or b"\0")
        self._symbol_sizes = np.array([len(symbol) for symbol in self._program.symbols], np.int64)
        self._nowhere = Frame.empty(self._program.layout, np.zeros(self._program.layout.domain_count, np.int64))
        self._symbols = self._texts.address + np.cumsum(self._symbol_sizes) - self._symbol_sizes

    @property
    def shape(self) -> Struct:
        return self._program.layout.shape

    def decode(self, values: Located) -> Decoded:
        problems = np.zeros(values.size.size, np.int32)
        is_flat = self._program.layout.domain_count == 1
        counts = self._rows(values) if is_flat else self._counted(values, problems)
        frame = Frame.empty(self._program.layout, counts)
        rooms = [pa.allocate_buffer(_UUID_SIZE * int(counts[domain])) for domain in self._program.rooms]
        rows = np.zeros(len(counts), np.int64)
        self._read(values, rows, frame, problems, rooms, looking=is_flat)
        return Decoded(frame, problems, (values.held, self._texts, *rooms))

    def _rows(self, values: Located) -> Longs:
        counts = np.zeros(self._program.layout.domain_count, np.int64)
        counts[0] = values.size.size
        return counts

    def _counted(self, values: Located, problems: NDArray[np.int32]) -> Longs:
        """The rows of each domain. Problems are found on the way."""
        counts = np.zeros(self._program.layout.domain_count, np.int64)
        self._read(values, counts, None, problems, [], looking=True)
        counts[0] = values.size.size
        return counts

    def _read(
        self,
        values: Located,
        rows: Longs,
        frame: Frame | None,
        problems: NDArray[np.int32],
        rooms: list[Any],
        *,
        looking: bool,
    ) -> None:
        into = frame if frame is not None else self._nowhere
        k.read_values(
            *(self._program.code, values.address, values.size, self._symbols, self._symbol_sizes),
            *(np.array([room.address for room in rooms], np.int64), into.base, rows, into.valid, into.bits, into.more),
            *(problems, frame is not None, looking),
        )

    def encode(self, frame: Frame) -> Located:
        count, row = len(frame), 0
        addresses, sizes = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        rows = np.zeros(len(frame.counts), np.int64)
        held, room = [], self._guess(frame)
        while row < count:
            # Rows for which there is no room go into a larger one: no row is measured before it is written.
            if room > _ROOM_MAX:
                row, room = row + 1, self._guess(frame)  # no value is so large: it is null
                continue
            buffer = pa.allocate_buffer(room)
            held.append(buffer)
            row, _ = k.write_values(
                *(self._program.code, self._symbols, self._symbol_sizes, self._program.symbols_sorted),
                *(frame.base, rows, frame.valid, frame.bits, frame.more, addresses, sizes),
                *(row, buffer.address, buffer.address + buffer.size),
            )
            room *= 2
        return Located(addresses, sizes, tuple(held))

    def _guess(self, frame: Frame) -> int:
        """How many bytes the rows may need together."""
        layout, room = frame.layout, _ROOM_MIN + _BYTES_A_SLOT * len(frame.valid)
        for node in np.flatnonzero(np.isin(layout.kinds, _WITH_BYTES)).tolist():
            start = int(frame.base[node])
            end = start + int(frame.counts[layout.domains[node]])
            room += int(np.where(frame.valid[start:end], frame.more[start:end], 0).sum())
        return min(room, _ROOM_MAX // 2)

    def reason(self, problem: int) -> str:
        path = self._program.paths.get(problem >> k.PROBLEM_BITS, "")
        why = _REASONS.get(problem & (1 << k.PROBLEM_BITS) - 1, "it is no value of its schema")
        return f"field {path}: {why}" if path else why
