"""Appends three batches to a log on this machine and reads them back: `python examples/append_and_read.py`."""

import asyncio

from lakestream.clock import RandomIds
from lakestream.config.settings import Settings
from lakestream.errors import Conflict
from lakestream.metadata.topics import Topic
from lakestream.records.batch import RecordBatch
from lakestream.server.node import open_node
from lakestream.testing.batches import make_batch, records_of


async def main() -> None:
    async with open_node(Settings()) as node:
        try:
            topic = await node.topics.create("events", Topic(RandomIds().new(), partition_count=1))
        except Conflict:
            topic = await node.topics.get("events")
        (partition,) = topic.partitions()

        for number in range(3):
            batch = make_batch([f"event {number}.{record}".encode() for record in range(2)])
            appended = await node.log.append(partition, RecordBatch.parse(batch))
            print(f"acknowledged at offsets {appended.offset_start} to {appended.offset_end - 1}")

        bounds = await node.log.bounds(partition)
        offset = bounds.start
        while offset < bounds.end:
            result = await node.log.read(partition, offset, bytes_max=1_000_000)
            for offset_start, buffers in result.batches:
                for delta, _key, value in records_of(b"".join(buffers)):
                    print(offset_start + delta, value)
            offset = result.offset_next


asyncio.run(main())
