"""A catalog of one table for dry runs: new columns and writer schemas are kept in memory only.

`pipeline/dead_letters/scan.py` runs the steps of a repair on it, so that its report is what a repair would do. It
starts from the loaded table; later commits are not read.
"""

from collections.abc import Callable, Sequence

import msgspec

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.metadata_files import MetadataFile
from lakestream.catalog.table_metadata.builder import apply_updates
from lakestream.catalog.table_metadata.json_model import Json, file_json
from lakestream.catalog.table_metadata.updates import Update
from lakestream.metadata.writer_schemas import TableWriters, Writers
from lakestream.schemas.value_format import ValuePart
from lakestream.schemas.writer_schema import WriterSchema


class DryRunCatalog:
    """Implements `catalog/operations/update_schema.py:EvolvingCatalog` for one table."""

    def __init__(self, catalog: Catalog, table: LoadedTable) -> None:
        self.writers = DryRunWriterSchemas(catalog.writers)
        self._clock = catalog.clock
        self._table = table

    async def load_id(self, table_id: str, *, confirmed: bool = False) -> LoadedTable:
        return self._table

    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable:
        table = self._table
        changed = apply_updates(table.metadata, updates_for(table.metadata), self._clock.now_ms())
        if changed is not table.metadata:
            file = MetadataFile(table.metadata_location, msgspec.json.encode(file_json(changed)))
            self._table = LoadedTable(table.table_id, table.name, table.topic_id, file)
        return self._table


class DryRunWriterSchemas:
    """The stored writer schemas, and those that a repair would add."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._added: dict[ValuePart, dict[int, WriterSchema]] = {part: {} for part in ValuePart}

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters:
        stored = await self._writers.all(topic_id, confirmed=confirmed)
        return TableWriters(
            {**self._added[ValuePart.VALUE], **stored.values}, {**self._added[ValuePart.KEY], **stored.keys}
        )

    async def create(self, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema:
        stored = (await self._writers.all(topic_id)).of(part).get(writer.number)
        return stored or self._added[part].setdefault(writer.number, writer)
