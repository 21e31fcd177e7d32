"""A typed table as it would be: columns and writers are added on paper, and nobody else ever sees them.

For who looks (`pipeline/maintenance/dead_letters.py`): the very steps of a repair run over it, so what is said to be
possible is what a repair does. Begins with a table as it was loaded; nothing that others do later is seen.
"""

from collections.abc import Callable, Sequence

import msgspec

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.draft import applied
from lakestream.catalog.files import MetadataFile
from lakestream.catalog.shapes import Json, written
from lakestream.catalog.updates import Update
from lakestream.metadata.typed import TableWriters, Writers
from lakestream.schemas.typing import Part
from lakestream.schemas.writers import Writer


class OnPaper:
    """Of one table: `catalog/evolve.py:Evolving`."""

    def __init__(self, catalog: Catalog, table: LoadedTable) -> None:
        self.writers = PaperWriters(catalog.writers)
        self._clock = catalog.clock
        self._table = table

    async def load_id(self, table_id: str, *, confirmed: bool = False) -> LoadedTable:
        return self._table

    async def change(self, table_id: str, updates_for: Callable[[Json], Sequence[Update]]) -> LoadedTable:
        table = self._table
        changed = applied(table.metadata, updates_for(table.metadata), self._clock.now_ms())
        if changed is not table.metadata:
            file = MetadataFile(table.metadata_location, msgspec.json.encode(written(changed)))
            self._table = LoadedTable(table.table_id, table.name, table.topic_id, file)
        return self._table


class PaperWriters:
    """Those that there are, and those that would be."""

    def __init__(self, writers: Writers) -> None:
        self._writers = writers
        self._added: dict[Part, dict[int, Writer]] = {part: {} for part in Part}

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters:
        there = await self._writers.all(topic_id, confirmed=confirmed)
        return TableWriters({**self._added[Part.VALUE], **there.values}, {**self._added[Part.KEY], **there.keys})

    async def create(self, topic_id: str, part: Part, writer: Writer) -> Writer:
        there = (await self._writers.all(topic_id)).of(part).get(writer.number)
        return there or self._added[part].setdefault(writer.number, writer)
