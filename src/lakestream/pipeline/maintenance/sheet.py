"""A typed table at one moment, and on paper what a repair would make of it: what dead_letters.py looks through.

Before: typed_topics.py, over catalog/on_paper.py.  After: looking.py, a file at a time.  Nothing is changed.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.listing import Listing, Listings, LiveFile, by_partition
from lakestream.catalog.on_paper import OnPaper
from lakestream.catalog.parquet_names import file_columns
from lakestream.catalog.rewrite import FilesChanged
from lakestream.clock import Clock
from lakestream.errors import Corrupt, Missing, Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.model import Span
from lakestream.pipeline.maintenance.dead_letter import Asked
from lakestream.pipeline.maintenance.files import TableFiles
from lakestream.pipeline.maintenance.looking import Look, Looked, looked
from lakestream.pipeline.maintenance.repair import ASKS_MAX, no_schema
from lakestream.pipeline.maintenance.typed_files import checked_listing, own_ids, source_of, untold
from lakestream.pipeline.typed_topics import Read, Registry, TypedTopics
from lakestream.schemas.typing import Part, Typing, Wanted
from lakestream.schemas.writers import Writer


class Desk(NamedTuple):
    """What a sheet is made with."""

    catalog: Catalog
    registry: Registry
    clock: Clock
    read: Read
    listings: Listings


@dataclass(slots=True, eq=False)
class Sheet:
    desk: Desk
    named: NamedTopic
    listing: Listing
    writers: tuple[Writer, ...]
    """Of all rows."""
    typed: TypedTopics
    table: LoadedTable
    """On paper."""
    typing: Typing
    left: list[str]
    """Files that cannot be looked at, and why."""

    @classmethod
    async def begin(cls, desk: Desk, named: NamedTopic) -> "Sheet":
        """Unsupported: the topic has no schema, or its table cannot be looked at. NoSuchTable: there is none yet."""
        table = await desk.catalog.load_id(named.topic.topic_id)
        typed = TypedTopics(OnPaper(desk.catalog, table), desk.registry, desk.clock, desk.read)
        prepared = await typed.mend(named, table)
        if prepared.typing is None:
            raise no_schema(named)
        listing = await checked_listing(desk.listings, table)
        # After the files: the writers of every row in these are there by now.
        writers = await desk.catalog.writers.all(table.table_id, confirmed=True)
        known = tuple(writers.of(Part.VALUE).values())
        return cls(desk, named, listing, known, typed, prepared.table, prepared.typing, untold(listing.data))

    def partitions(self) -> list[int]:
        return sorted(by_partition(self.listing.data))

    def files(self, partition: int, window: Span) -> list[LiveFile]:
        """That may have rows of these offsets, by their first ones."""
        return [
            file
            for file in by_partition(self.listing.data).get(partition, ())
            if (file.offset_last or 0) >= window.start and (file.offset_first or 0) < window.end
        ]

    async def look(self, file: LiveFile, window: Span, asked: Asked) -> Looked:
        """What it wants to know is looked up. FilesChanged: it is no file of the table any more, or not with these
        deletes."""
        for number in range(ASKS_MAX):
            look = self._look(file, window, asked, asks=number + 1 < ASKS_MAX)
            try:
                return await self._looked(file, look)
            except Wanted as wanted:
                await self._learn(wanted)
        raise Unavailable("schemas are asked for although nobody answers: this is a bug, please report it")

    def _look(self, file: LiveFile, window: Span, asked: Asked, *, asks: bool) -> Look:
        typing = Typing(self.typing.value, self.typing.key, asks=asks and self.typing.asks)  # what is wrong is told
        columns, own = file_columns(self.table.metadata), own_ids(self.table)
        return Look(file.partition, window, asked, columns, typing, self.writers, own)

    async def _looked(self, file: LiveFile, look: Look) -> Looked:
        catalog = self.desk.catalog
        try:
            opened = await TableFiles(catalog.objects, catalog.locations).open(source_of(file, self.listing))
            return await looked(opened, look)
        except (Corrupt, Missing) as error:  # Missing: what is deleted of it
            now = await catalog.load_id(self.table.table_id)
            if not self._is_as_before(file, await self.desk.listings.of_main(now.metadata)):
                raise FilesChanged(f"{file.location} or its deletes were replaced while it was read") from error
            self.left.append(str(error))
            return Looked()

    def _is_as_before(self, file: LiveFile, now: Listing) -> bool:
        """Still a file of the table, with the same deletes."""
        deletes, deletes_now = (set(source_of(file, one).deletes) for one in (self.listing, now))
        return deletes == deletes_now and any(one.location == file.location for one in now.data)

    async def _learn(self, wanted: Wanted) -> None:
        prepared = await self.typed.learn(self.named, self.table, self.typing, wanted.schemas, wanted.inferred)
        self.table, self.typing = prepared.table, prepared.typing or self.typing
