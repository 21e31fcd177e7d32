"""Load of idempotent producers: several batches in flight per partition, built before the measurement."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lakestream.data.log.log import Log
from lakestream.model import PartitionId
from lakestream.records.batch import HEADER_SIZE, RecordBatch, build

IN_FLIGHT = 5
"""Requests in flight of a Kafka producer by default."""


def batches(count: int, size: int, records: int, producer_id: int = 1) -> Iterator[bytes]:
    """Builds consecutive batches of one idempotent producer, `size` bytes each with header.

    Their payload is random bytes, which the log does not parse."""
    payload = random.Random(producer_id).randbytes(size - HEADER_SIZE)
    for number in range(count):
        yield build(
            payload,
            records,
            attributes=0,
            base_timestamp=1_700_000_000_000,
            max_timestamp=1_700_000_000_000,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=number * records,
        )


def work_for(partitions: Sequence[PartitionId], batches: Sequence[bytes]) -> dict[PartitionId, Sequence[bytes]]:
    """Returns the same batches for every partition.

    Sequence numbers count per partition, so all partitions can use the same bytes. They are then in the processor's
    caches, as if they had just been received."""
    return dict.fromkeys(partitions, batches)


async def produce(log: Log, work: Mapping[PartitionId, Iterable[bytes]], in_flight: int = IN_FLIGHT) -> None:
    """Appends all batches, in order per partition, as fast as results arrive."""
    async with asyncio.TaskGroup() as tasks:
        for partition, batches in work.items():
            rest = iter(batches)
            for _ in range(in_flight):
                tasks.create_task(_send(log, partition, rest))


async def _send(log: Log, partition: PartitionId, rest: Iterator[bytes]) -> None:
    # No await between `next` and the log's buffer: the senders of a partition keep its order.
    for data in rest:
        await log.submit(partition, RecordBatch.parse(data))
