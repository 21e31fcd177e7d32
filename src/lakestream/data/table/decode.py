"""Record batches, as clients sent them, to rows: the second step of the way into the table.

Before: who read the bytes and knows from the claims which batches count and what their offsets are.  After: Parquet.

    heads.py  →  groups of batches that become rows together  →  checksums  →  decompressed  →  columns.py

Python runs per source, per compressed batch and per large batch, never per record. No payload is copied: rows point
into the buffers that came in, or into those that were decompressed into.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from lakestream.batch import CODECS, COMPRESSION_MASK, HEADER_SIZE
from lakestream.checksum import crc32c
from lakestream.data.table.arena import Arena
from lakestream.data.table.columns import rows
from lakestream.data.table.heads import Heads, Source, Sources
from lakestream.data.table.kernels_crc import first_damaged
from lakestream.data.table.kernels_read import RECORD_SIZE_MIN, group_end
from lakestream.data.table.limits import DEFAULT_LIMITS, SPAN_MAX, Limits
from lakestream.data.table.records import Records
from lakestream.errors import Rejected

_SMALL_END: Final = 768
"""Smaller batches are checked in one call; from here on a call for each is faster."""
_CRC_AT, _CRC_FROM = 17, 21


def decode(sources: Iterable[Source], partition: int, limits: Limits = DEFAULT_LIMITS) -> Iterator[Any]:
    """Rows (`arrow.SCHEMA`) in the order given, a `pyarrow.RecordBatch` at a time. Markers of transactions make none.

    Corrupt: a batch is damaged, or holds what no client may send. The message says which, where, and what is wrong.
    """
    held = Sources(list(sources))
    rest = held.heads()
    while len(rest):
        group = rest[: _group_end(rest, limits)]
        _check(held, group)
        records = _located(held, group, limits)
        rest = rest[len(records) :]
        _check_sizes(held, records, limits)
        while len(records):
            made, records = rows(held, records, partition, limits)
            yield made


def _group_end(heads: Heads, limits: Limits) -> int:
    return group_end(
        *(limits.rows_max, limits.bytes_max, SPAN_MAX),
        *(heads.source, heads.start, heads.end, heads.record_count),
    )


def _check(held: Sources, group: Heads) -> None:
    """Every batch against its checksum."""
    size = group.size
    damaged = first_damaged(group.address, size, _SMALL_END)
    if damaged >= 0:
        raise held.corrupt(group, damaged, "its checksum does not fit its bytes")
    for batch in np.flatnonzero(size >= _SMALL_END).tolist():
        data = held.bytes_of(group, batch)
        if crc32c(data[_CRC_FROM:]) != int.from_bytes(data[_CRC_AT:_CRC_FROM], "big"):
            raise held.corrupt(group, batch, "its checksum does not fit its bytes")


def _located(held: Sources, group: Heads, limits: Limits) -> Records:
    """Where the records of each batch lie, decompressed. Of fewer batches than given, if they grow too much."""
    buffers, buffer, position = held.windows(group)
    address, size, position = group.address + HEADER_SIZE, group.size - HEADER_SIZE, position + HEADER_SIZE
    arena, end = Arena(limits.batch_bytes_max, buffers), len(group)
    codecs = group.attributes & COMPRESSION_MASK
    for batch in np.flatnonzero(codecs).tolist():
        if arena.used > limits.bytes_max:
            end = batch
            break
        try:
            placed = arena.put(held.bytes_of(group, batch)[HEADER_SIZE:], CODECS[codecs[batch]])
        except Rejected as error:
            raise held.corrupt(group, batch, str(error)) from error
        address[batch], size[batch], buffer[batch], position[batch] = placed
    # These change while records become rows, so none of them may be somebody else's.
    arrays = (address, size, buffer, position, group.record_count.copy(), group.base_offset - 1)
    return Records(buffers, group[:end], *(array[:end] for array in arrays))


def _check_sizes(held: Sources, records: Records, limits: Limits) -> None:
    """Before anything is made as large as a batch says that it is."""
    for wrong, reason in (
        (records.size > limits.batch_bytes_max, f"it holds more than {limits.batch_bytes_max} bytes of records"),
        (records.count * RECORD_SIZE_MIN > records.size, "it announces more records than its bytes can hold"),
    ):
        if wrong.any():
            raise held.corrupt(records.heads, int(wrong.argmax()), reason)
