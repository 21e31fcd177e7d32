"""Sources of record batches, and the headers of their batches, one array per field: the first step of batch_decoder.py.

Kernels: kernels/decode_batch.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.kernels.decode_batch import PROBLEMS, find_batches, read_heads
from lakestream.errors import Corrupt
from lakestream.model import Buffer
from lakestream.records.batch import CONTROL, HEADER_SIZE


@dataclass(frozen=True, slots=True, eq=False)
class BatchSource:
    """Batches of one partition in bytes that were read together, each with the base offset from its claim.

    The offset that is stored in a batch is ignored (`records/batch.py`).
    """

    name: str
    data: Buffer
    starts: Longs
    ends: Longs
    base_offsets: Longs
    byte_start: int = 0
    """The position of the bytes in the object or file that the name names."""

    def __post_init__(self) -> None:
        # Kernels that read through addresses rely on this.
        if ((self.starts < 0) | (self.starts > self.ends) | (self.ends > len(self.data))).any():
            raise Corrupt(f"{self.name}: a claim names a record batch beyond the end of its {len(self.data)} bytes")

    @classmethod
    def of(
        cls, name: str, data: Buffer, spans: Sequence[tuple[int, int]], base_offsets: Sequence[int]
    ) -> "BatchSource":
        """Returns batches at any positions in the bytes, as listed by a claim."""
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        starts, ends = np.ascontiguousarray(bounds[:, 0]), np.ascontiguousarray(bounds[:, 1])
        return cls(name, data, starts, ends, _checked_offsets(base_offsets, starts))

    @classmethod
    def back_to_back(cls, name: str, data: Buffer, base_offsets: Sequence[int] | Longs) -> "BatchSource":
        """Returns batches that fill the bytes. `base_offsets`: one for each of them."""
        buffer = pa.py_buffer(data)
        starts, ends = (np.empty(buffer.size // HEADER_SIZE + 1, np.int64) for _ in range(2))
        count = find_batches(buffer.address, buffer.size, starts, ends)
        if count < 0:
            raise Corrupt(f"{name}: no whole record batch at byte {-1 - count}, where one should begin")
        return cls(name, data, starts[:count], ends[:count], _checked_offsets(base_offsets, starts[:count]))

    @classmethod
    def single(cls, name: str, data: Buffer, base_offset: int) -> "BatchSource":
        """Returns one batch."""
        start, end, offset = (np.array([number], np.int64) for number in (0, len(data), base_offset))
        return cls(name, data, start, end, offset)


def _checked_offsets(base_offsets: Sequence[int] | Longs, starts: Longs) -> Longs:
    offsets = np.ascontiguousarray(base_offsets, np.int64)
    if offsets.size != starts.size:
        raise ValueError(f"{starts.size} batches need as many base offsets, not {offsets.size}")
    return offsets


@dataclass(frozen=True, slots=True, eq=False)
class BatchHeaders:
    """One row per batch. `source` is its number in the list of sources, `address` its address in memory."""

    source: Longs
    start: Longs
    end: Longs
    base_offset: Longs
    address: Longs
    attributes: Longs
    record_count: Longs
    delta_max: Longs
    base_timestamp: Longs
    max_timestamp: Longs

    def __len__(self) -> int:
        return int(self.source.size)

    def __getitem__(self, which: "slice | Longs") -> "BatchHeaders":
        return BatchHeaders(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def size(self) -> Longs:
        return self.end - self.start


class BatchSources:
    """All sources of one call. Keeps their bytes in memory."""

    def __init__(self, sources: Sequence[BatchSource]) -> None:
        self._sources = sources
        self.buffers: list[Any] = [pa.py_buffer(source.data) for source in sources]
        self._bytes: list[memoryview] = [memoryview(buffer).cast("B") for buffer in self.buffers]

    def heads(self) -> BatchHeaders:
        """Returns the headers of all batches except transaction markers. Raises Corrupt if one is invalid."""
        heads = self._unread()
        problem, batch = read_heads(
            *(heads.address, heads.size, heads.attributes, heads.record_count),
            *(heads.delta_max, heads.base_timestamp, heads.max_timestamp),
        )
        if problem:
            raise self.corrupt(heads, batch, PROBLEMS[problem])
        markers = heads.attributes & CONTROL
        return heads[np.flatnonzero(markers == 0)] if markers.any() else heads

    def _unread(self) -> BatchHeaders:
        counts = [source.starts.size for source in self._sources]
        addresses = np.array([buffer.address for buffer in self.buffers], np.int64)
        start = _joined([source.starts for source in self._sources])
        return BatchHeaders(
            np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            start,
            _joined([source.ends for source in self._sources]),
            _joined([source.base_offsets for source in self._sources]),
            np.repeat(addresses, counts) + start,
            *(np.empty_like(start) for _ in range(5)),
        )

    def bytes_of(self, heads: BatchHeaders, batch: int) -> memoryview:
        return self._bytes[int(heads.source[batch])][heads.start[batch] : heads.end[batch]]

    def windows(self, group: BatchHeaders) -> tuple[list[Any], Longs, Longs]:
        """Returns the part of each source that a group covers, as buffers; for each batch its buffer and position."""
        firsts = np.flatnonzero(np.diff(group.source, prepend=-1))
        counts = np.diff(firsts, append=len(group))
        origins, ends = group.start[firsts], np.maximum.reduceat(group.end, firsts)
        buffers = [
            self.buffers[source].slice(origin, end - origin)
            for source, origin, end in zip(group.source[firsts].tolist(), origins.tolist(), ends.tolist(), strict=True)
        ]
        return buffers, np.repeat(np.arange(len(buffers)), counts), group.start - np.repeat(origins, counts)

    def corrupt(self, heads: BatchHeaders, batch: int, reason: str) -> Corrupt:
        source = self._sources[heads.source[batch]]
        where = f"record batch at byte {source.byte_start + heads.start[batch]} (offset {heads.base_offset[batch]})"
        return Corrupt(f"{source.name}: {where} is damaged: {reason}")


def _joined(arrays: list[Longs]) -> Longs:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
