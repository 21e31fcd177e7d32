"""Producers as the broker will see them: idempotent, several batches in flight per partition, batches built ahead."""

import asyncio
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lakestream.batch import HEADER_SIZE, RecordBatch, build
from lakestream.data.log.log import Log
from lakestream.model import PartitionId

IN_FLIGHT = 5
"""Requests that a Kafka producer has under way by default."""


def batches(count: int, size: int, records: int, producer_id: int = 1) -> Iterator[bytes]:
    """Consecutive batches of one idempotent producer, `size` bytes each with header. Nobody looks at what they hold."""
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


def work_for(partitions: Sequence[PartitionId], theirs: Sequence[bytes]) -> dict[PartitionId, Sequence[bytes]]:
    """One producer that writes the same to every partition. It counts sequences per partition, so the bytes are the
    same too, and are as warm in the processor's caches as if they had just been received."""
    return dict.fromkeys(partitions, theirs)


async def produce(log: Log, work: Mapping[PartitionId, Iterable[bytes]], in_flight: int = IN_FLIGHT) -> None:
    """Append everything, in order per partition, as fast as the answers come."""
    async with asyncio.TaskGroup() as tasks:
        for partition, theirs in work.items():
            rest = iter(theirs)
            for _ in range(in_flight):
                tasks.create_task(_send(log, partition, rest))


async def _send(log: Log, partition: PartitionId, rest: Iterator[bytes]) -> None:
    # Between `next` and the batch's place in the log's buffer nothing waits: a partition's senders keep its order.
    for data in rest:
        await log.place(partition, RecordBatch.parse(data))
