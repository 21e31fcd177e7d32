"""Dry run of a repair: a snapshot of a table, with the columns that a repair would add. Changes nothing.

Before: topic_schemas.py, over catalog/operations/dry_run.py.  After: file_scan.py, one file at a time.
"""

from dataclasses import dataclass
from typing import NamedTuple

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.operations.dry_run import DryRunCatalog
from lakestream.catalog.operations.live_files import LiveFileReader, LiveFiles
from lakestream.catalog.operations.rewrite_files import FilesChanged
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.live_file import LiveFile, by_partition
from lakestream.clock import Clock
from lakestream.errors import Corrupt, Missing, Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.model import Span
from lakestream.pipeline.dead_letters.file_scan import FileDeadLetters, ScanRequest, scan_file
from lakestream.pipeline.dead_letters.model import DeadLetterQuery
from lakestream.pipeline.maintenance.table_file import TableFiles
from lakestream.pipeline.repair.candidates import checked_listing, own_ids, source_of, unbounded
from lakestream.pipeline.repair.repair import SCHEMA_ROUNDS_MAX
from lakestream.pipeline.topic_schemas import Read, Registry, TopicSchemas
from lakestream.schemas.value_format import ConversionSettings, SchemasMissingError, ValuePart
from lakestream.schemas.writer_schema import WriterSchema


class DryRunDependencies(NamedTuple):
    catalog: Catalog
    registry: Registry
    clock: Clock
    read: Read
    listings: LiveFileReader


@dataclass(slots=True, eq=False)
class TableDryRun:
    dependencies: DryRunDependencies
    named: NamedTopic
    listing: LiveFiles
    writers: tuple[WriterSchema, ...]
    """The writer schemas of all rows."""
    schemas: TopicSchemas
    table: LoadedTable
    """With the columns that a repair would add."""
    conversion: ConversionSettings
    left: list[str]
    """For each file that is left out, the reason."""

    @classmethod
    async def begin(cls, dependencies: DryRunDependencies, named: NamedTopic) -> "TableDryRun":
        """Opens a dry run. Unsupported: the table cannot be repaired. NoSuchTable: the topic has no table yet."""
        table = await dependencies.catalog.load_id(named.topic.topic_id)
        schemas = TopicSchemas(
            DryRunCatalog(dependencies.catalog, table), dependencies.registry, dependencies.clock, dependencies.read
        )
        prepared = await schemas.prepare_repair(named, table)
        listing = await checked_listing(dependencies.listings, table)
        # After the files, so that the writer schemas of all their rows are included.
        writers = await dependencies.catalog.writers.all(table.table_id, confirmed=True)
        value_writers = tuple(writers.of(ValuePart.VALUE).values())
        return cls(
            dependencies,
            named,
            listing,
            value_writers,
            schemas,
            prepared.table,
            prepared.conversion or ConversionSettings(),
            unbounded(listing.data),
        )

    def partitions(self) -> list[int]:
        return sorted(by_partition(self.listing.data))

    def files(self, partition: int, window: Span) -> list[LiveFile]:
        """Returns the files of a partition that may have rows of these offsets."""
        return [
            file
            for file in by_partition(self.listing.data).get(partition, ())
            if (file.offset_last or 0) >= window.start and (file.offset_first or 0) < window.end
        ]

    async def scan(self, file: LiveFile, window: Span, query: DeadLetterQuery) -> FileDeadLetters:
        """Scans a file, and looks up the schemas that the scan lacks.

        FilesChanged: the file was removed from the table, or its deletes changed.
        """
        for number in range(SCHEMA_ROUNDS_MAX):
            request = self._request(file, window, query, is_last=number + 1 == SCHEMA_ROUNDS_MAX)
            try:
                return await self._scan(file, request)
            except SchemasMissingError as missing:
                await self._resolve_schemas(missing)
        raise Unavailable("the scan still lacks schemas after the last attempt: this is a bug, please report it")

    def _request(self, file: LiveFile, window: Span, query: DeadLetterQuery, *, is_last: bool) -> ScanRequest:
        requests = self.conversion.requests_schemas and not is_last
        conversion = ConversionSettings(self.conversion.value, self.conversion.key, requests_schemas=requests)
        columns, own = file_columns(self.table.metadata), own_ids(self.table)
        return ScanRequest(file.partition, window, query, columns, conversion, self.writers, own)

    async def _scan(self, file: LiveFile, request: ScanRequest) -> FileDeadLetters:
        catalog = self.dependencies.catalog
        folder = catalog.locations.table(self.table.metadata["location"])
        try:
            opened = await TableFiles(catalog.objects, folder).open(source_of(file, self.listing))
            return await scan_file(opened, request)
        except (Corrupt, Missing) as error:  # Missing: a delete file
            current = await catalog.load_id(self.table.table_id)
            if not self._is_unchanged(file, await self.dependencies.listings.of_main(current.metadata)):
                raise FilesChanged(f"{file.location} or its deletes were replaced during the scan") from error
            self.left.append(str(error))
            return FileDeadLetters()

    def _is_unchanged(self, file: LiveFile, current: LiveFiles) -> bool:
        """Whether the file is still in the table, with the same deletes."""
        before, after = (set(source_of(file, listing).deletes) for listing in (self.listing, current))
        return before == after and any(one.location == file.location for one in current.data)

    async def _resolve_schemas(self, missing: SchemasMissingError) -> None:
        prepared = await self.schemas.resolve(
            self.named, self.table, self.conversion, missing.schemas, missing.inferred
        )
        self.table, self.conversion = prepared.table, prepared.conversion or self.conversion
