"""Adds columns to rows that kept their bytes, where schemas allow it now: `lakestream table repair`.

    topic_schemas.py  looks up the topic's schemas; adds columns for fields that have none, where the types allow it
    worker.py         in a worker: converts the values of a file again; the driver looks up schemas that it lacks
    commit            catalog/operations/rewrite_files.py: the rows keep their offsets for every reader

Only files that improve are rewritten. A repair can be stopped at any time and repeated. It can run concurrently with
the pipeline and maintenance: the second commit that replaces a file fails, and is planned again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.operations.live_files import LiveFileReader, LiveFiles
from lakestream.catalog.operations.rewrite_files import FilesChanged, Rewrite, rewrite
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.plan import writing_of
from lakestream.pipeline.maintenance.service import RewriteJob
from lakestream.pipeline.maintenance.tasks import Repair, Repaired, RepairSchemasMissing, Result, TaskFailed
from lakestream.pipeline.repair.candidates import checked_listing, has_bounds, own_ids, source_of, unbounded
from lakestream.pipeline.tasks import Reason
from lakestream.pipeline.topic_schemas import TopicSchemas
from lakestream.schemas.value_format import ConversionSettings, ValuePart
from lakestream.schemas.writer_schema import WriterSchema

log = logging.getLogger(__name__)

FILES_AT_ONCE: Final = 8
"""Files of one commit."""
SCHEMA_ROUNDS_MAX: Final = 30
TRIES_MAX: Final = 5
TARGET_BYTES: Final = 128 * 1024 * 1024


@dataclass(slots=True)
class RepairDone:
    files: int = 0
    """Files that had rows with bytes, or keys without columns."""
    files_written: int = 0
    rows_before: int = 0
    """Rows that kept their bytes."""
    rows_after: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    """Number of rows that still keep their bytes, by reason."""
    firsts: dict[Reason, tuple[int, int]] = field(default_factory=dict)
    """Partition and offset of the first row by reason."""
    left: list[str] = field(default_factory=list)
    """For each file that was left out, the reason."""


class Repairs:
    def __init__(self, catalog: Catalog, schemas: TopicSchemas, job: RewriteJob) -> None:
        self._catalog = catalog
        self._schemas = schemas
        self._job = job
        self._listings = LiveFileReader(catalog.objects, catalog.locations)

    async def run(self, named: NamedTopic, progress: Callable[[int, int], None] | None = None) -> RepairDone:
        """Repairs the table of a topic. Unsupported: the table cannot be repaired. NoSuchTable: it does not exist."""
        done = RepairDone()
        loaded = await self._catalog.load_id(named.topic.topic_id)
        prepared = await self._schemas.prepare_repair(named, loaded)
        if prepared.conversion is None:
            raise no_schema(named)
        work = _RepairRun(
            self._catalog, self._schemas, self._job, self._listings, named, prepared.table, prepared.conversion
        )
        listing = await self._list_files(work)
        files = _files_to_repair(listing, done)
        seen: set[str] = set()
        tries = 0
        while waiting := [file for file in files if file.location not in seen][:FILES_AT_ONCE]:
            try:
                await work.run(waiting, listing, done)
            except FilesChanged as error:
                tries += 1
                if tries >= TRIES_MAX:
                    raise Unavailable(
                        f"the files of the table were replaced by other writers {tries} times: retry ({error})"
                    ) from error
                work.table = await self._catalog.load_id(named.topic.topic_id)
                listing = await self._list_files(work)
                files = _files_to_repair(listing, done)
                continue
            seen.update(file.location for file in waiting)
            if progress is not None:
                progress(len(seen), len(files))
        return done

    async def _list_files(self, work: "_RepairRun") -> LiveFiles:
        """Lists the files, then the writer schemas, so that those of all rows in the files are included."""
        listing = await checked_listing(self._listings, work.table)
        writers = await self._catalog.writers.all(work.table.table_id, confirmed=True)
        work.writers = tuple(writers.of(ValuePart.VALUE).values())
        return listing


@dataclass(slots=True)
class _RepairRun:
    catalog: Catalog
    schemas: TopicSchemas
    job: RewriteJob
    listings: LiveFileReader
    named: NamedTopic
    table: LoadedTable
    conversion: ConversionSettings
    writers: tuple[WriterSchema, ...] = ()
    """The writer schemas of all rows."""

    async def run(self, files: Sequence[LiveFile], listing: LiveFiles, done: RepairDone) -> None:
        results = await self._results(files, listing)
        good = [one for one in results.values() if isinstance(one, Repaired)]
        replaced = {location for one in good for location in one.removed}
        if replaced:
            await self._commit([file for file in files if file.location in replaced], good, listing)
        failed = [file for file in files if isinstance(results[file.location], TaskFailed)]
        removed = await self._replaced(failed) if failed else frozenset()
        for file in files:
            if file.location not in removed:
                _note(done, file, results[file.location])
        if removed:
            raise FilesChanged(f"{len(removed)} files were replaced by other writers during the repair")

    async def _replaced(self, files: Sequence[LiveFile]) -> frozenset[str]:
        """Returns the unreadable files that were replaced: other files of the table have their rows."""
        table = await self.catalog.load_id(self.table.table_id)
        live = {file.location for file in (await self.listings.of_main(table.metadata)).data}
        return frozenset(file.location for file in files) - live

    async def _results(self, files: Sequence[LiveFile], listing: LiveFiles) -> dict[str, Result]:
        """Returns the results by file. When workers lack schemas, these are looked up, and the tasks run again."""
        found: dict[str, Result] = {}
        for number in range(SCHEMA_ROUNDS_MAX):
            waiting = [file for file in files if file.location not in found]
            results = await self.job.run([self._task(file, listing, number) for file in waiting])
            missing = [one for one in results if isinstance(one, RepairSchemasMissing)]
            found |= {
                file.location: one
                for file, one in zip(waiting, results, strict=True)
                if not isinstance(one, RepairSchemasMissing)
            }
            if not missing:
                return found
            await self._resolve_schemas(missing)
        raise Unavailable("workers still lack schemas after the last attempt: this is a bug, please report it")

    async def _resolve_schemas(self, missing: Sequence[RepairSchemasMissing]) -> None:
        schemas = [schema for one in missing for schema in one.schemas]
        shapes = [shape for one in missing for shape in one.inferred]
        prepared = await self.schemas.resolve(self.named, self.table, self.conversion, schemas, shapes)
        self.table = prepared.table
        self.conversion = prepared.conversion or self.conversion

    def _task(self, file: LiveFile, listing: LiveFiles, number: int) -> Repair:
        metadata = self.table.metadata
        requests_schemas = self.conversion.requests_schemas and number + 1 < SCHEMA_ROUNDS_MAX
        conversion = ConversionSettings(self.conversion.value, self.conversion.key, requests_schemas=requests_schemas)
        known = {one.number: one for one in (*self.writers, *self.conversion.value.writers) if one.format}
        return Repair(
            file.partition,
            (source_of(file, listing),),
            metadata["location"],
            TARGET_BYTES,
            file_columns(metadata),
            conversion,
            tuple(known.values()),
            own_ids(self.table),
            writing_of(metadata),
        )

    async def _commit(self, removed: Sequence[LiveFile], results: Sequence[Repaired], listing: LiveFiles) -> None:
        places = {file.location for file in removed}
        change = Rewrite(
            operation="overwrite",
            removed=removed,
            files=[file for one in results for file in one.files],
            deletes_known=frozenset(file.location for file in listing.deletes),
            deletes_removed=frozenset(file.location for file in listing.deletes if file.referenced_file in places),
        )
        self.table = await rewrite(self.catalog, self.table, change)
        log.info("repair.committed table=%s files=%d", self.table.name, len(removed))


def no_schema(named: NamedTopic) -> Unsupported:
    return Unsupported(f"topic {named.name} has no schema: set lakestream.value.schema first")


def _files_to_repair(listing: LiveFiles, done: RepairDone) -> list[LiveFile]:
    """Returns the files to repair, in order."""
    done.left += [reason for reason in unbounded(listing.data) if reason not in done.left]
    return sorted(filter(has_bounds, listing.data), key=lambda file: (file.partition, file.offset_first or 0))


def _note(done: RepairDone, file: LiveFile, result: Result) -> None:
    if isinstance(result, TaskFailed):
        done.left.append(result.reason)
    if not isinstance(result, Repaired) or not (result.rows_before or result.errors or result.removed):
        return
    done.files += 1
    done.files_written += len(result.files)
    done.rows_before += result.rows_before
    done.rows_after += result.rows_after if result.removed else max(result.rows_after, 0)
    for errors in result.errors:
        reason = Reason(errors.reason, errors.schema_id)
        done.reasons[reason] += errors.count
        done.firsts.setdefault(reason, (file.partition, errors.offset))
