"""Checks and changes batches before the log receives them.

`Failed`, for one connection: an idempotent producer sends more batches before it receives the error for one. The
log rejects batches behind one that failed there (`claimer.py:FailedBatch`), but not behind one that did not reach it,
because its topic was not found or the broker's clock was wrong. A producer that is new to the log could then begin with
its second batch, and the first one would be out of order forever. So the broker passes a batch behind a failed one to
the log only if the log has the producer's state.

Batches are rewritten if the topic's settings require another codec or timestamp type, or if the newest timestamp or
the timestamp type in the header is wrong.
"""

import struct
from typing import Final, NamedTuple, TypeAlias, cast

from crc32c import crc32c

from lakestream.coordination.topic_config import TopicSettings
from lakestream.data.log.log import Log
from lakestream.errors import Corrupt, OutOfOrder, Rejected
from lakestream.model import Buffer, PartitionId
from lakestream.records.batch import (
    CODECS,
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_END,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    RecordBatch,
)
from lakestream.records.compression import compressed, with_decompressed

FAILED_BATCHES: Final = "produce.failed_batches"
"""Key of the failed batches in a connection's state, present only while there are any."""

FAILED_BATCHES_MAX: Final = 1_000

RequestedPartition: TypeAlias = tuple[object, int]
"""A partition as the client names it: topic name or id, and number."""


class Failed(NamedTuple):
    epoch: int
    sequence: int


_FailedBatches: TypeAlias = dict[tuple[RequestedPartition, int], Failed]  # by partition and producer


def note(state: dict[str, object], partition: RequestedPartition, records: memoryview | None) -> None:
    """Records that this batch failed before the log received it."""
    try:
        batch = RecordBatch.parse(records or b"")
    except (Corrupt, Rejected):
        return  # a retry cannot succeed
    if batch.producer_id == NO_PRODUCER:
        return
    failed = cast(_FailedBatches, state.setdefault(FAILED_BATCHES, {}))
    before = failed.get((partition, batch.producer_id))
    if before is None or before.epoch != batch.producer_epoch or batch.base_sequence < before.sequence:
        failed[partition, batch.producer_id] = Failed(batch.producer_epoch, batch.base_sequence)
    if len(failed) > FAILED_BATCHES_MAX:
        del failed[next(iter(failed))]


async def check(
    state: dict[str, object], requested: RequestedPartition, batch: RecordBatch, partition: PartitionId, log: Log
) -> None:
    """Raises OutOfOrder if a batch before this one failed, and the log cannot detect that."""
    failed_batches = cast(_FailedBatches, state.get(FAILED_BATCHES, {}))
    failed = failed_batches.get((requested, batch.producer_id))
    if failed is None:
        return
    if (
        batch.producer_epoch == failed.epoch
        and batch.base_sequence > failed.sequence
        and batch.producer_id not in await log.producers(partition, confirmed=True)
    ):
        raise OutOfOrder(
            f"producer {batch.producer_id}: the batch with sequence {failed.sequence} failed: send it first"
        )
    # This is the retry, or the producer has a new epoch, or the log has the producer's state and checks the sequence.
    failed_batches.pop((requested, batch.producer_id), None)
    if not failed_batches:
        state.pop(FAILED_BATCHES, None)


_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 8, 17, 21, 35
_CRC_START: Final = _ATTRIBUTES_AT


def topic_codec(batch: RecordBatch, settings: TopicSettings) -> str:
    if settings.compression == "producer":
        return batch.compression
    return "none" if settings.compression == "uncompressed" else settings.compression


def needs_rewriting(batch: RecordBatch, settings: TopicSettings) -> bool:
    return settings.log_append_time or topic_codec(batch, settings) != batch.compression


def with_create_time(batch: RecordBatch, newest: int) -> bytes:
    """Returns the same batch with CreateTime and the newest timestamp in its header, as Kafka's leader corrects it."""
    head = bytearray(memoryview(batch.data)[:HEADER_SIZE])
    struct.pack_into(">h", head, _ATTRIBUTES_AT, batch.attributes & ~LOG_APPEND_TIME)
    struct.pack_into(">q", head, _MAX_TIMESTAMP_AT, newest)
    return _joined(head, memoryview(batch.data)[HEADER_SIZE:])


def rewritten(batch: RecordBatch, settings: TopicSettings, now_ms: int) -> bytes:
    """Returns the batch with the codec and timestamps of its topic's settings. Blocks while it compresses records."""
    codec = topic_codec(batch, settings)
    records: Buffer = memoryview(batch.data)[HEADER_SIZE:]
    if codec != batch.compression:
        records = with_decompressed(records, batch.compression, lambda plain: compressed(plain, codec))
    attributes = (batch.attributes & ~COMPRESSION_MASK) | CODECS.index(codec)
    head = bytearray(memoryview(batch.data)[:HEADER_SIZE])
    if settings.log_append_time:
        attributes |= LOG_APPEND_TIME
        struct.pack_into(">q", head, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">i", head, _LENGTH_AT, HEADER_SIZE - LENGTH_END + len(records))
    struct.pack_into(">h", head, _ATTRIBUTES_AT, attributes)
    return _joined(head, records)


def _joined(head: bytearray, records: Buffer) -> bytes:
    struct.pack_into(">I", head, _CRC_AT, crc32c(records, crc32c(head[_CRC_START:])))
    return b"".join((head, records))
