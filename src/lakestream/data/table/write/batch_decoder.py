"""Decodes record batches, as clients sent them, to rows: the second step of ingestion.

Before: the worker, which has read the bytes, and the claims that list the batches and their offsets.  After:
parquet_writer.py.

    batch_headers.py  →  groups of batches that are decoded together  →  checksums  →  decompress  →  record_columns.py

Python runs per source, per compressed batch and per large batch, never per record. No payload is copied: rows point
into the input buffers, or into those of the decompressed records.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.unreadable_batches import as_batches
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.kernels.crc32c import first_damaged
from lakestream.data.table.kernels.decode_batch import FEWER_RECORDS, PROBLEMS, RECORD_SIZE_MIN, group_end
from lakestream.data.table.write.batch_headers import BatchHeaders, BatchSource, BatchSources
from lakestream.data.table.write.decoded_batches import DEFAULT_LIMITS, SPAN_MAX, DecodeLimits, Records
from lakestream.data.table.write.decompression import DecompressionBuffers
from lakestream.data.table.write.record_columns import UnreadableRecord, rows, unreadable_batches
from lakestream.errors import Rejected
from lakestream.records.batch import CODECS, COMPRESSION_MASK, HEADER_SIZE, rebased
from lakestream.records.crc32c import crc32c
from lakestream.records.file_region import as_bytes
from lakestream.schemas.value_format import ConversionErrorCounts

_SMALL_END: Final = 768
"""Smaller batches are verified in one call; from this size on a call for each is faster."""
_CRC_AT, _CRC_FROM = 17, 21
_Reasons: TypeAlias = dict[int, str]
"""Batches of a group that cannot be read, by position, with the reason."""


def decode(
    sources: Iterable[BatchSource],
    partition: int,
    limits: DecodeLimits = DEFAULT_LIMITS,
    unreadable: ConversionErrorCounts | None = None,
) -> Iterator[Any]:
    """Yields rows (`types.SCHEMA`) in the order given, as `pyarrow.RecordBatch`es. Transaction markers yield no rows.

    Raises Corrupt, with source, position and problem, if a batch is damaged, or has content that no client may send.
    With `unreadable`, only damage is Corrupt: a batch with a matching checksum and unreadable records becomes one row
    (arrow/unreadable_batches.py), and is counted in `unreadable`.
    """
    opened = BatchSources(list(sources))
    rest = opened.heads()
    # A header may declare billions of records; such a batch must not be a group by itself. `record_columns.rows` bounds
    # the rows of a group once more.
    expected = np.minimum(rest.record_count, rest.size)
    while len(rest):
        group = rest[: _group_end(rest, expected, limits)]
        _verify_checksums(opened, group)
        records, reasons = _decompressed(opened, group, limits)
        rest, expected = rest[len(records) :], expected[len(records) :]
        _replace_unreadable(opened, records, _invalid_sizes(records, limits) | reasons, unreadable)
        while len(records):
            made, records = _rows(opened, records, partition, limits, unreadable)
            yield made


def _group_end(heads: BatchHeaders, expected: Longs, limits: DecodeLimits) -> int:
    return group_end(*(limits.rows_max, limits.bytes_max, SPAN_MAX), *(heads.source, heads.start, heads.end, expected))


def _verify_checksums(sources: BatchSources, group: BatchHeaders) -> None:
    """Raises Corrupt if the checksum of a batch does not match its bytes."""
    size = group.size
    damaged = first_damaged(group.address, size, _SMALL_END)
    if damaged >= 0:
        raise sources.corrupt(group, damaged, "its checksum does not match its bytes")
    for batch in np.flatnonzero(size >= _SMALL_END).tolist():
        data = sources.bytes_of(group, batch)
        if crc32c(data[_CRC_FROM:]) != int.from_bytes(data[_CRC_AT:_CRC_FROM], "big"):
            raise sources.corrupt(group, batch, "its checksum does not match its bytes")


def _decompressed(sources: BatchSources, group: BatchHeaders, limits: DecodeLimits) -> tuple[Records, _Reasons]:
    """Returns the decompressed records of each batch, and the batches that cannot be decompressed. Stops before the end
    of the group if the records grow too large."""
    buffers, buffer, position = sources.windows(group)
    address, size, position = group.address + HEADER_SIZE, group.size - HEADER_SIZE, position + HEADER_SIZE
    arena, end = DecompressionBuffers(limits.batch_bytes_max, buffers), len(group)
    codecs = group.attributes & COMPRESSION_MASK
    reasons: _Reasons = {}
    for batch in np.flatnonzero(codecs).tolist():
        if arena.used > limits.bytes_max:
            end = batch
            break
        try:
            decompressed = arena.put(sources.bytes_of(group, batch)[HEADER_SIZE:], CODECS[codecs[batch]])
        except Rejected as error:
            reasons[batch] = str(error)
        else:
            address[batch], size[batch], buffer[batch], position[batch] = decompressed
    # These arrays are modified while records become rows, so none of them may be shared.
    arrays = (address, size, buffer, position, group.record_count.copy(), group.base_offset - 1)
    return Records(buffers, group[:end], *(array[:end] for array in arrays)), reasons


def _invalid_sizes(records: Records, limits: DecodeLimits) -> _Reasons:
    """Returns the batches that declare more records, or have more bytes, than memory may be allocated for."""
    return {
        batch: reason
        for is_invalid, reason in (
            (records.count * RECORD_SIZE_MIN > records.size, PROBLEMS[FEWER_RECORDS]),
            (records.size > limits.batch_bytes_max, f"it holds more than {limits.batch_bytes_max} bytes of records"),
        )
        for batch in np.flatnonzero(is_invalid).tolist()
    }


def _rows(
    sources: BatchSources,
    records: Records,
    partition: int,
    limits: DecodeLimits,
    unreadable: ConversionErrorCounts | None,
) -> tuple[Any, Records]:
    """Returns the same as `record_columns.rows`. A batch becomes rows only if all of its records can be read."""
    was_cut = records.is_cut
    while True:
        try:
            made, rest = rows(records, partition, limits)
        except UnreadableRecord as error:
            if unreadable is None:
                raise sources.corrupt(records.heads, error.batch, f"record {error.record}: {error.reason}") from error
            reasons = unreadable_batches(records, limits)
        else:
            cut = len(records) - len(rest)
            if unreadable is None or not rest.is_cut or (was_cut and cut == 0):
                return made, rest
            # A batch with more rows than are returned together: its other records are read before any becomes a row.
            reasons = {cut + batch: reason for batch, reason in unreadable_batches(rest.first, limits).items()}
            if not reasons:
                return made, rest
        _replace_unreadable(sources, records, reasons, unreadable)


def _replace_unreadable(
    sources: BatchSources, records: Records, reasons: _Reasons, unreadable: ConversionErrorCounts | None
) -> None:
    """Replaces the records of each unreadable batch by one record: the bytes of the batch, and the reason."""
    if not reasons:
        return
    batches, heads = sorted(reasons), records.heads
    if unreadable is None:
        raise sources.corrupt(heads, batches[0], reasons[batches[0]])
    places = np.array(batches, np.int64)
    served = [as_bytes(rebased(sources.bytes_of(heads, batch), int(heads.base_offset[batch]))) for batch in batches]
    made = as_batches(served, [reasons[batch] for batch in batches])
    buffer = pa.py_buffer(made.data)
    records.buffers.append(buffer)
    records.address[places] = buffer.address + made.starts + HEADER_SIZE
    records.size[places] = made.ends - made.starts - HEADER_SIZE
    records.buffer[places] = len(records.buffers) - 1
    records.position[places] = made.starts + HEADER_SIZE
    records.count[places] = 1
    records.offset_before[places] = heads.base_offset[places] - 1
    heads.base_timestamp[places] = heads.max_timestamp[places]
    for batch in batches:
        unreadable.add(reasons[batch], 0, 1, int(heads.base_offset[batch]))
