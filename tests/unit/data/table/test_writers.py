"""What brokers know of who wrote typed rows."""

import asyncio
from collections.abc import Mapping

from lakestream.data.table.snapshots import Table
from lakestream.data.table.writers import KnownWriters
from lakestream.errors import Missing
from lakestream.metadata.typed import TableWriters
from lakestream.schemas.writers import NoWriter, Writer

TABLE = Table("default.events", "", None, {}, {}, topic_id="id", is_typed=True)


class Records:
    def __init__(self) -> None:
        self.stored: dict[int, Writer] = {}

    async def all(self, topic_id: str) -> TableWriters:
        return TableWriters({**self.stored}, {})

    async def get(self, topic_id: str, number: int) -> Writer:
        if number not in self.stored:
            raise Missing(f"no writer {number}")
        return self.stored[number]


async def test_a_read_does_not_meet_writers_that_another_one_learns() -> None:
    """The columns of a read are those of the writers that were known when it began."""
    records = Records()
    known = KnownWriters(records)
    await known.of("id")
    records.stored[1] = Writer(1, "AVRO", '"string"')
    began, go_on = asyncio.Event(), asyncio.Event()
    seen = []

    async def slow(writers: Mapping[int, Writer]) -> str:
        columns = set(writers)
        began.set()
        await go_on.wait()
        seen.append((columns, set(writers)))
        return _needing_one(writers)

    async def quick(writers: Mapping[int, Writer]) -> str:
        return _needing_one(writers)

    reading = asyncio.create_task(known.trying(TABLE, slow))
    await began.wait()
    assert await known.trying(TABLE, quick) == "read"
    go_on.set()
    assert await reading == "read"
    assert seen == [(set(), set()), ({1}, {1})]


def _needing_one(writers: Mapping[int, Writer]) -> str:
    if 1 not in writers:
        raise NoWriter(1)
    return "read"
