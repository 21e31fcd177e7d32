"""Which batches there are: sources, and the heads of the batches in them, one array a field.

First step of decode.py.  Kernels: kernels_read.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.batch import CONTROL, HEADER_SIZE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.kernels_read import PROBLEMS, find_batches, read_heads
from lakestream.errors import Corrupt
from lakestream.model import Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Batches of one partition in bytes that were read together, each with the offset that its claim gives it.

    The offset that is stored in a batch means nothing (`batch.py`).
    """

    name: str
    data: Buffer
    starts: Longs
    ends: Longs
    base_offsets: Longs
    byte_start: int = 0
    """Where the bytes begin in what the name names."""

    def __post_init__(self) -> None:
        # Whatever reads through addresses relies on this.
        if ((self.starts < 0) | (self.starts > self.ends) | (self.ends > len(self.data))).any():
            raise Corrupt(f"{self.name}: a claim names a record batch beyond the {len(self.data)} bytes that are there")

    @classmethod
    def of(cls, name: str, data: Buffer, spans: Sequence[tuple[int, int]], base_offsets: Sequence[int]) -> "Source":
        """Batches wherever they lie in the bytes, as a claim says."""
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        starts, ends = np.ascontiguousarray(bounds[:, 0]), np.ascontiguousarray(bounds[:, 1])
        return cls(name, data, starts, ends, _one_each(base_offsets, starts))

    @classmethod
    def back_to_back(cls, name: str, data: Buffer, base_offsets: Sequence[int] | Longs) -> "Source":
        """Batches that fill the bytes. `base_offsets`: one for each of them."""
        held = pa.py_buffer(data)
        starts, ends = (np.empty(held.size // HEADER_SIZE + 1, np.int64) for _ in range(2))
        found = find_batches(held.address, held.size, starts, ends)
        if found < 0:
            raise Corrupt(f"{name}: no whole record batch at byte {-1 - found}, where one should begin")
        return cls(name, data, starts[:found], ends[:found], _one_each(base_offsets, starts[:found]))

    @classmethod
    def single(cls, name: str, data: Buffer, base_offset: int) -> "Source":
        """One batch."""
        start, end, offset = (np.array([number], np.int64) for number in (0, len(data), base_offset))
        return cls(name, data, start, end, offset)


def _one_each(base_offsets: Sequence[int] | Longs, starts: Longs) -> Longs:
    offsets = np.ascontiguousarray(base_offsets, np.int64)
    if offsets.size != starts.size:
        raise ValueError(f"{starts.size} batches need as many base offsets, not {offsets.size}")
    return offsets


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """A row for each batch. `source` is its number in the list of sources, `address` where it lies in memory."""

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

    def __getitem__(self, which: "slice | Longs") -> "Heads":
        return Heads(*(getattr(self, field.name)[which] for field in fields(self)))

    @property
    def size(self) -> Longs:
        return self.end - self.start


class Sources:
    """All sources of one call, their bytes held."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.buffers: list[Any] = [pa.py_buffer(source.data) for source in sources]
        self._bytes: list[memoryview] = [memoryview(buffer).cast("B") for buffer in self.buffers]

    def heads(self) -> Heads:
        """Of all batches, markers of transactions left out: they are no records. Corrupt: one is wrong."""
        heads = self._unread()
        problem, batch = read_heads(
            *(heads.address, heads.size, heads.attributes, heads.record_count),
            *(heads.delta_max, heads.base_timestamp, heads.max_timestamp),
        )
        if problem:
            raise self.corrupt(heads, batch, PROBLEMS[problem])
        markers = heads.attributes & CONTROL
        return heads[np.flatnonzero(markers == 0)] if markers.any() else heads

    def _unread(self) -> Heads:
        counts = [source.starts.size for source in self._sources]
        addresses = np.array([buffer.address for buffer in self.buffers], np.int64)
        start = _joined([source.starts for source in self._sources])
        return Heads(
            np.repeat(np.arange(len(counts), dtype=np.int64), counts),
            start,
            _joined([source.ends for source in self._sources]),
            _joined([source.base_offsets for source in self._sources]),
            np.repeat(addresses, counts) + start,
            *(np.empty_like(start) for _ in range(5)),
        )

    def bytes_of(self, heads: Heads, batch: int) -> memoryview:
        return self._bytes[int(heads.source[batch])][heads.start[batch] : heads.end[batch]]

    def windows(self, group: Heads) -> tuple[list[Any], Longs, Longs]:
        """The part of each source that a group takes: as buffers, and for each batch which of them and where in it."""
        firsts = np.flatnonzero(np.diff(group.source, prepend=-1))
        counts = np.diff(firsts, append=len(group))
        origins, ends = group.start[firsts], np.maximum.reduceat(group.end, firsts)
        buffers = [
            self.buffers[source].slice(origin, end - origin)
            for source, origin, end in zip(group.source[firsts].tolist(), origins.tolist(), ends.tolist(), strict=True)
        ]
        return buffers, np.repeat(np.arange(len(buffers)), counts), group.start - np.repeat(origins, counts)

    def corrupt(self, heads: Heads, batch: int, reason: str) -> Corrupt:
        source = self._sources[heads.source[batch]]
        where = f"record batch at byte {source.byte_start + heads.start[batch]} (offset {heads.base_offset[batch]})"
        return Corrupt(f"{source.name}: {where} is damaged: {reason}")


def _joined(arrays: list[Longs]) -> Longs:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)
