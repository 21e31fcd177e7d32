"""Cache of the writer schemas of tables' values, by number. Records in the metadata store are immutable.

Used by history_reader.py, whose rows have these numbers. A number that is not cached belongs to a newer writer schema,
and is loaded. If the metadata store lacks it, the rows cannot be read.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol, TypeVar

from lakestream.data.table.read.snapshots import TableSnapshot
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.writer_schemas import TableWriters
from lakestream.schemas.writer_schema import UnknownWriterSchema, WriterSchema

TABLES_MAX: Final = 1_000

T = TypeVar("T")


class WriterSchemaStore(Protocol):
    """`metadata/writer_schemas.py:Writers`."""

    async def all(self, topic_id: str) -> TableWriters: ...

    async def get(self, topic_id: str, number: int) -> WriterSchema: ...


class WriterSchemaCache:
    def __init__(self, records: WriterSchemaStore) -> None:
        self._records = records
        self._tables: OrderedDict[str, Mapping[int, WriterSchema]] = OrderedDict()

    async def of(self, topic_id: str) -> Mapping[int, WriterSchema]:
        """Returns the writer schemas of values, by number. The mapping is never modified: a read that selected columns
        by it must not get other writer schemas when it converts them to values."""
        cached = self._tables.get(topic_id)
        if cached is None:
            loaded = await self._records.all(topic_id)
            cached = self._tables.setdefault(topic_id, {**loaded.values})
        self._tables.move_to_end(topic_id)
        if len(self._tables) > TABLES_MAX:
            self._tables.popitem(last=False)
        return cached

    async def read_with(self, table: TableSnapshot, read: Callable[[Mapping[int, WriterSchema]], Awaitable[T]]) -> T:
        """Calls `read` with the writer schemas of a table, and again after loading one that was not cached."""
        while True:
            try:
                return await read(await self.of(table.topic_id))
            except UnknownWriterSchema as error:
                await self._load(table, error.number)

    async def _load(self, table: TableSnapshot, number: int) -> None:
        try:
            writer = await self._records.get(table.topic_id, number)
        except Missing as error:
            raise Corrupt(
                f"table {table.name} has rows of writer schema {number}, which the metadata store lacks ({error}):"
                " restore its record from a backup"
            ) from error
        self._tables[table.topic_id] = {**await self.of(table.topic_id), number: writer}
