"""The decompressed records of batches, how far they have become rows, and the memory limits of decoding them.

Filled by batch_decoder.py, consumed by record_columns.py.
"""

from dataclasses import dataclass, fields
from typing import Any, Final

from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.write.batch_headers import BatchHeaders
from lakestream.model import MiB

SPAN_MAX: Final = 1024 * MiB
"""Bytes of one source that rows of one Arrow batch may point into: positions in views have 31 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeLimits:
    """Limits of memory per Arrow batch: about 100 bytes a row, 50 a header, and the decompressed record batches."""

    batch_bytes_max: int = 256 * MiB  # decompressed records of one record batch; a larger one is rejected
    headers_max: int = 1_000_000  # of one record; one with more is rejected. An Arrow batch has at most twice as many
    rows_max: int = 500_000  # per Arrow batch
    bytes_max: int = 32 * MiB  # record batches per Arrow batch, compressed and decompressed; a single one may be larger

    def __post_init__(self) -> None:
        if min(self.batch_bytes_max, self.headers_max, self.rows_max, self.bytes_max) < 1:
            raise ValueError(f"each limit must be at least 1: {self}")
        if max(self.batch_bytes_max, self.bytes_max) > SPAN_MAX:
            raise ValueError(f"limits must not exceed the {SPAN_MAX} bytes that views can address: {self}")


DEFAULT_LIMITS: Final = DecodeLimits()


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """The records of batches: one array per field, one number per batch. `buffers` are those that views name."""

    buffers: list[Any]
    heads: BatchHeaders
    address: Longs
    size: Longs
    buffer: Longs
    position: Longs
    count: Longs
    offset_before: Longs

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def is_cut(self) -> bool:
        """Whether some records of the first batch are rows already."""
        return len(self) > 0 and bool(self.offset_before[0] >= self.heads.base_offset[0])

    @property
    def first(self) -> "Records":
        """The records of the first batch."""
        return Records(self.buffers, *(getattr(self, field.name)[:1] for field in fields(self)[1:]))

    def copied(self) -> "Records":
        """Returns a copy: `after` of the copy does not modify the original."""
        arrays = (getattr(self, field.name).copy() for field in fields(self)[2:])
        return Records(self.buffers, self.heads, *arrays)

    def after(self, batch: int, record: int, at: int, offset_before: int) -> "Records":
        """Returns the records after the first `record` records, of `at` bytes, of a batch. Modifies the arrays."""
        rest = Records(self.buffers, *(getattr(self, field.name)[batch:] for field in fields(self)[1:]))
        if record:
            for array, step in ((rest.address, at), (rest.size, -at), (rest.position, at), (rest.count, -record)):
                array[0] += step
            rest.offset_before[0] = offset_before
        return rest
