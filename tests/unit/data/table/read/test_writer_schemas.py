"""Cache of writer schemas."""

import asyncio
from collections.abc import Mapping

from lakestream.catalog.locations import Locations
from lakestream.data.table.read.snapshots import TableSnapshot
from lakestream.data.table.read.writer_schemas import WriterSchemaCache
from lakestream.errors import Missing
from lakestream.metadata.writer_schemas import TableWriters
from lakestream.schemas.writer_schema import UnknownWriterSchema, WriterSchema

FOLDER = Locations("s3://lake").table("s3://lake/tables/events")
TABLE = TableSnapshot("default.events", "", None, {}, {}, FOLDER, topic_id="id", is_typed=True)


class Records:
    def __init__(self) -> None:
        self.stored: dict[int, WriterSchema] = {}

    async def all(self, topic_id: str) -> TableWriters:
        return TableWriters({**self.stored}, {})

    async def get(self, topic_id: str, number: int) -> WriterSchema:
        if number not in self.stored:
            raise Missing(f"no writer {number}")
        return self.stored[number]


async def test_read_keeps_its_writer_schemas_when_another_read_loads_more() -> None:
    """The columns of a read are those of the writer schemas that were cached when it began."""
    records = Records()
    cache = WriterSchemaCache(records)
    await cache.of("id")
    records.stored[1] = WriterSchema(1, "AVRO", '"string"')
    began, resume = asyncio.Event(), asyncio.Event()
    seen = []

    async def slow(writers: Mapping[int, WriterSchema]) -> str:
        columns = set(writers)
        began.set()
        await resume.wait()
        seen.append((columns, set(writers)))
        return _needing_one(writers)

    async def quick(writers: Mapping[int, WriterSchema]) -> str:
        return _needing_one(writers)

    reading = asyncio.create_task(cache.read_with(TABLE, slow))
    await began.wait()
    assert await cache.read_with(TABLE, quick) == "read"
    resume.set()
    assert await reading == "read"
    assert seen == [(set(), set()), ({1}, {1})]


def _needing_one(writers: Mapping[int, WriterSchema]) -> str:
    if 1 not in writers:
        raise UnknownWriterSchema(1)
    return "read"
