"""Validates the records of a produced batch, as the leader of a Kafka partition does before it appends.

The batch's header and checksum were validated by `RecordBatch.parse`. The pipeline can read every batch that passes.
"""

from typing import Any, Final

import numpy as np

from lakestream.data.table.kernels.decode_batch import PROBLEMS, validate_records
from lakestream.data.table.write.decoded_batches import DEFAULT_LIMITS
from lakestream.errors import InvalidRecords
from lakestream.model import Buffer
from lakestream.records.batch import HEADER_SIZE, RecordBatch, Timestamps
from lakestream.records.compression import with_decompressed
from lakestream.records.lz4_frame import validate_lz4_frame

NUMBERS_MAX: Final = 10_000
"""Record numbers without a key in the response: a batch of less than a megabyte may have millions of records."""
_NO_KEYS_NEEDED: Final = np.empty(0, np.uint8)


def validate(batch: RecordBatch, *, keys_needed: bool) -> Timestamps:
    """Returns the timestamps of a batch whose records are valid, and have keys where these are needed.

    Raises InvalidRecords if a record is not valid or the records cannot be decompressed, BatchTooLarge if they
    decompress to too many bytes.
    """
    if batch.compression == "none":
        return _validate(batch, batch.data, HEADER_SIZE, keys_needed)
    records = memoryview(batch.data)[HEADER_SIZE:]
    if batch.compression == "lz4":
        validate_lz4_frame(records)
    return with_decompressed(records, batch.compression, lambda plain: _validate(batch, plain, 0, keys_needed))


def _validate(batch: RecordBatch, data: Buffer, start: int, keys_needed: bool) -> Timestamps:
    records: Any = np.frombuffer(data, np.uint8)
    # A count that the bytes cannot hold is rejected before it is used as a size.
    keyless = np.empty(min(batch.record_count, records.size), np.uint8) if keys_needed else _NO_KEYS_NEEDED
    problem, number, oldest, newest = validate_records(
        records, start, DEFAULT_LIMITS.headers_max, batch.record_count, batch.base_timestamp, keyless
    )
    if problem:
        reason = PROBLEMS[problem]
        raise InvalidRecords({number: reason}, f"record {number} of the batch is invalid: {reason}")
    if keyless.any():
        numbers = np.flatnonzero(keyless)[:NUMBERS_MAX].tolist()
        reason = "Compacted topic cannot accept message without key"
        raise InvalidRecords(
            dict.fromkeys(numbers, reason), f"{reason}: record {numbers[0]} of the batch has none: set a key"
        )
    return Timestamps(oldest, newest)
