"""Avro codec. `program.py` compiles a schema into a program that `kernels.py` executes.

Values are encoded as the Java, Python and JavaScript libraries do: shortest varints, a list in one block. A value in
another encoding has the same meaning but other bytes, so it keeps its bytes.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.typed import column_buffers
from lakestream.data.typed.avro import kernels as k
from lakestream.data.typed.avro.program import Program, program_of
from lakestream.data.typed.codec import TOO_MANY, TOO_MANY_REASON, Decoded
from lakestream.data.typed.column_buffers import KINDS, ColumnBuffers
from lakestream.model import MiB
from lakestream.schemas.avro.schema import AvroSchema
from lakestream.schemas.types import Kind, Struct

_REASONS: Final = {
    k.CUT_OFF: "the value is truncated",
    k.TOO_WIDE: "the number exceeds the range of its type",
    k.LENGTH: "the length is invalid, or exceeds the value",
    k.NOT_TEXT: "the string is not UTF-8",
    k.NOT_BOOLEAN: "the boolean is neither 0 nor 1",
    k.NO_SYMBOL: "the enum has no such symbol",
    k.NO_BRANCH: "the union has no such branch",
    k.TOO_DEEP: f"the value is nested deeper than {k.DEPTH_MAX} levels",
    k.LEFT_OVER: "bytes are left over after the value: it has another schema",
}
_UUID_SIZE: Final = 16
_ROOM_MIN: Final = 4096
_ROOM_MAX: Final = 4096 * MiB
_BYTES_A_SLOT: Final = 8
_WITH_BYTES: Final = tuple(KINDS[kind] for kind in (Kind.STRING, Kind.BINARY, Kind.FIXED))


class AvroCodec:
    def __init__(self, schema: AvroSchema) -> None:
        self._program: Program = program_of(schema.type)
        # The concatenated texts of all enum symbols: rows contain addresses of these.
        self._texts = pa.py_buffer(b"".join(self._program.symbols) or b"\0")
        self._symbol_sizes = np.array([len(symbol) for symbol in self._program.symbols], np.int64)
        self._nowhere = ColumnBuffers.empty(self._program.layout, np.zeros(self._program.layout.domain_count, np.int64))
        self._symbols = self._texts.address + np.cumsum(self._symbol_sizes) - self._symbol_sizes

    @property
    def shape(self) -> Struct:
        return self._program.layout.shape

    def decode(self, values: ByteSpans, slots_max: int | None = None) -> Decoded:
        program = self._program
        values = values.first(program.layout.rows_max)
        problems, counts = np.zeros(values.size.size, np.int32), np.zeros(program.layout.domain_count, np.int64)
        limit = column_buffers.SLOTS_MAX if slots_max is None else slots_max
        is_flat = len(counts) == 1 and len(problems) * int(program.weights[0]) <= min(limit, column_buffers.SLOTS_MAX)
        if not is_flat:
            values = values.first(self._read(values, counts, None, problems, [], limit, validating=True))
            problems = problems[: values.size.size]
        counts[0] = len(problems)
        buffers = ColumnBuffers.empty(program.layout, counts)
        rooms = [pa.allocate_buffer(_UUID_SIZE * int(counts[domain])) for domain in program.rooms]
        self._read(values, np.zeros_like(counts), buffers, problems, rooms, k.UNLIMITED, validating=is_flat)
        return Decoded(buffers, int(counts @ program.weights), problems, (values.held, self._texts, *rooms))

    def problems(self, values: ByteSpans) -> NDArray[np.int32]:
        found = np.zeros(values.size.size, np.int32)
        rows = np.zeros(self._program.layout.domain_count, np.int64)
        self._read(values, rows, None, found, [], k.UNLIMITED, validating=True)
        return found

    def _read(
        self,
        values: ByteSpans,
        rows: Longs,
        buffers: ColumnBuffers | None,
        problems: NDArray[np.int32],
        rooms: list[Any],
        slots_max: int,
        *,
        validating: bool,
    ) -> int:
        """Returns how many of the values have at most `slots_max` slots. Fills `problems`, and the buffers; without
        these, `rows` becomes the number of rows of each domain."""
        into = buffers if buffers is not None else self._nowhere
        done: int = k.read_values(
            *(self._program.code, values.address, values.size, self._symbols, self._symbol_sizes),
            *(np.array([room.address for room in rooms], np.int64), into.base, rows, into.valid, into.bits, into.more),
            *(problems, self._program.weights, column_buffers.SLOTS_MAX, slots_max),
            *(buffers is not None, validating),
        )
        return done

    def encode(self, buffers: ColumnBuffers) -> ByteSpans:
        count, row = len(buffers), 0
        addresses, sizes = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        rows = np.zeros(len(buffers.counts), np.int64)
        held, room = [], self._guess(buffers)
        while row < count:
            # Rows that do not fit are written to the next, larger buffer: no row is measured before it is written.
            if room > _ROOM_MAX:
                row, room = row + 1, self._guess(buffers)  # larger than any value can be: it becomes null
                continue
            buffer = pa.allocate_buffer(room)
            held.append(buffer)
            row, _ = k.write_values(
                *(self._program.code, self._symbols, self._symbol_sizes, self._program.symbols_sorted),
                *(buffers.base, rows, buffers.valid, buffers.bits, buffers.more, addresses, sizes),
                *(row, buffer.address, buffer.address + buffer.size),
            )
            room *= 2
        return ByteSpans(addresses, sizes, tuple(held))

    def _guess(self, buffers: ColumnBuffers) -> int:
        """Returns an estimate of the bytes of all rows."""
        layout, room = buffers.layout, _ROOM_MIN + _BYTES_A_SLOT * len(buffers.valid)
        for node in np.flatnonzero(np.isin(layout.kinds, _WITH_BYTES)).tolist():
            start = int(buffers.base[node])
            end = start + int(buffers.counts[layout.domains[node]])
            room += int(np.where(buffers.valid[start:end], buffers.more[start:end], 0).sum())
        return min(room, _ROOM_MAX // 2)

    def reason(self, problem: int) -> str:
        if problem == TOO_MANY:
            return TOO_MANY_REASON
        path = self._program.paths.get(problem >> k.PROBLEM_BITS, "")
        why = _REASONS.get(problem & (1 << k.PROBLEM_BITS) - 1, "the value does not match its schema")
        return f"field {path}: {why}" if path else why
