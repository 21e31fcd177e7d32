"""Who wrote the typed rows of tables, as brokers know it: read once from the metadata store, kept, never out of date.

Used by replay.py, whose rows say numbers. A number that is not known here is a writer that came since, so it is asked
for; one that nobody knows is a table without what its rows are made of.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

from lakestream.data.table.snapshots import Table
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.typed import TableWriters
from lakestream.schemas.writers import NoWriter, Writer

TABLES_MAX: Final = 1_000

T = TypeVar("T")


class WriterRecords(Protocol):
    """`metadata/typed.py:Writers`."""

    async def all(self, topic_id: str) -> TableWriters: ...

    async def get(self, topic_id: str, number: int) -> Writer: ...


class KnownWriters:
    def __init__(self, records: WriterRecords) -> None:
        self._records = records
        self._tables: OrderedDict[str, Mapping[int, Writer]] = OrderedDict()

    async def of(self, topic_id: str) -> Mapping[int, Writer]:
        """Of values, by number. It does not grow while somebody has it: who reads the columns of these writers must not
        meet another one when it makes values of them."""
        known = self._tables.get(topic_id)
        if known is None:
            found = await self._records.all(topic_id)
            known = self._tables.setdefault(topic_id, {**found.values})
        self._tables.move_to_end(topic_id)
        if len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        return known

    async def trying(self, table: Table, read: Callable[[Mapping[int, Writer]], Awaitable[T]]) -> T:
        """What is read with the writers of a table; again with one that was not known."""
        while True:
            try:
                return await read(await self.of(table.topic_id))
            except NoWriter as error:
                await self._learn(table, error.number)

    async def _learn(self, table: Table, number: int) -> None:
        try:
            writer = await self._records.get(table.topic_id, number)
        except Missing as error:
            raise Corrupt(
                f"table {table.name} has rows that writer {number} typed, and nobody knows it ({error}): restore the"
                " metadata store's record from a backup"
            ) from error
        self._tables[table.topic_id] = {**await self.of(table.topic_id), number: writer}
