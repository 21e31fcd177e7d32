"""Rows that keep their bytes get their columns, where these can be had by now: `lakestream topic repair`.

    typed_topics.py   what is known of the topic's schemas now; fields without a column get one where it fits
    tasks → work.py   a worker types the values of a file anew (repairing.py); what it wants to know is looked up
    commit            catalog/rewrite.py: the rows are where they were, at the same offsets, for every reader

Only files that become better are written anew. It may be stopped anywhere and done again; beside the pipeline and
maintenance it does no harm: whoever comes second with a file finds it gone, and looks again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.listing import Listing, Listings, LiveFile
from lakestream.catalog.parquet_names import file_columns
from lakestream.catalog.rewrite import FilesChanged, Rewrite, rewrite
from lakestream.errors import Unavailable
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.dead_letter import Reason
from lakestream.pipeline.maintenance.maintain import RewriteJob
from lakestream.pipeline.maintenance.plan import writing_of
from lakestream.pipeline.maintenance.tasks import NotDone, Repair, Repaired, RepairWants, Result
from lakestream.pipeline.maintenance.typed_files import checked_listing, is_told, own_ids, source_of, untold
from lakestream.pipeline.typed_topics import TypedTopics
from lakestream.schemas.typing import Part, Typing
from lakestream.schemas.writers import Writer

log = logging.getLogger(__name__)

FILES_AT_ONCE: Final = 8
"""One commit for them."""
ASKS_MAX: Final = 30
TRIES_MAX: Final = 5
TARGET_BYTES: Final = 128 * 1024 * 1024


@dataclass(slots=True)
class RepairDone:
    files: int = 0
    """Looked at that have rows with bytes, or keys without columns."""
    files_written: int = 0
    rows_before: int = 0
    """That kept their bytes."""
    rows_after: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    """Why some still do, with the schema's id: how many."""
    firsts: dict[Reason, tuple[int, int]] = field(default_factory=dict)
    """The first of them: partition and offset."""
    left: list[str] = field(default_factory=list)
    """Files that could not be looked at, and why."""


class Repairs:
    def __init__(self, catalog: Catalog, typed: TypedTopics, job: RewriteJob) -> None:
        self._catalog = catalog
        self._typed = typed
        self._job = job
        self._listings = Listings(catalog.objects, catalog.locations)

    async def run(self, named: NamedTopic, progress: Callable[[int, int], None] | None = None) -> RepairDone:
        """Unsupported: it cannot be done to this table. NoSuchTable: there is none yet."""
        done = RepairDone()
        loaded = await self._catalog.load_id(named.topic.topic_id)
        prepared = await self._typed.mend(named, loaded)
        if prepared.typing is None:
            raise no_schema(named)
        work = _Work(self._catalog, self._typed, self._job, self._listings, named, prepared.table, prepared.typing)
        listing = await self._looked(work)
        files = _waiting(listing, done)
        seen: set[str] = set()
        tries = 0
        while waiting := [file for file in files if file.location not in seen][:FILES_AT_ONCE]:
            try:
                await work.do(waiting, listing, done)
            except FilesChanged as error:
                tries += 1
                if tries >= TRIES_MAX:
                    raise Unavailable(f"the files of the table change all the time: try again ({error})") from error
                work.table = await self._catalog.load_id(named.topic.topic_id)
                listing = await self._looked(work)
                files = _waiting(listing, done)
                continue
            seen.update(file.location for file in waiting)
            if progress is not None:
                progress(len(seen), len(files))
        return done

    async def _looked(self, work: "_Work") -> Listing:
        """The files, then the writers: those of every row in these files are there by now."""
        listing = await checked_listing(self._listings, work.table)
        writers = await self._catalog.writers.all(work.table.table_id, confirmed=True)
        work.writers = tuple(writers.of(Part.VALUE).values())
        return listing


@dataclass(slots=True)
class _Work:
    catalog: Catalog
    typed: TypedTopics
    job: RewriteJob
    listings: Listings
    named: NamedTopic
    table: LoadedTable
    typing: Typing
    writers: tuple[Writer, ...] = ()
    """Of all rows."""

    async def do(self, files: Sequence[LiveFile], listing: Listing, done: RepairDone) -> None:
        results = await self._results(files, listing)
        good = [one for one in results.values() if isinstance(one, Repaired)]
        replaced = {location for one in good for location in one.gone}
        if replaced:
            await self._commit([file for file in files if file.location in replaced], good, listing)
        failed = [file for file in files if isinstance(results[file.location], NotDone)]
        gone = await self._gone(failed) if failed else frozenset()
        for file in files:
            if file.location not in gone:
                _note(done, file, results[file.location])
        if gone:
            raise FilesChanged(f"{len(gone)} files were replaced by others while they were read")

    async def _gone(self, files: Sequence[LiveFile]) -> frozenset[str]:
        """Of files that could not be read those that are no files of the table any more: their rows are elsewhere."""
        table = await self.catalog.load_id(self.table.table_id)
        there = {file.location for file in (await self.listings.of_main(table.metadata)).data}
        return frozenset(file.location for file in files) - there

    async def _results(self, files: Sequence[LiveFile], listing: Listing) -> dict[str, Result]:
        """By file. What workers want to know they are told, and they try again."""
        found: dict[str, Result] = {}
        for number in range(ASKS_MAX):
            waiting = [file for file in files if file.location not in found]
            results = await self.job.run([self._task(file, listing, number) for file in waiting])
            wants = [one for one in results if isinstance(one, RepairWants)]
            found |= {
                file.location: one
                for file, one in zip(waiting, results, strict=True)
                if not isinstance(one, RepairWants)
            }
            if not wants:
                return found
            await self._learn(wants)
        raise Unavailable("workers ask although nobody answers: this is a bug, please report it")

    async def _learn(self, wants: Sequence[RepairWants]) -> None:
        schemas = [wanted for one in wants for wanted in one.schemas]
        shapes = [shape for one in wants for shape in one.inferred]
        prepared = await self.typed.learn(self.named, self.table, self.typing, schemas, shapes)
        self.table = prepared.table
        self.typing = prepared.typing or self.typing

    def _task(self, file: LiveFile, listing: Listing, number: int) -> Repair:
        metadata = self.table.metadata
        asks = self.typing.asks and number + 1 < ASKS_MAX
        typing = Typing(self.typing.value, self.typing.key, asks=asks)  # whatever is wrong stays as it is
        known = {one.number: one for one in (*self.writers, *self.typing.value.writers) if one.format}
        return Repair(
            file.partition,
            (source_of(file, listing),),
            metadata["location"],
            TARGET_BYTES,
            file_columns(metadata),
            typing,
            tuple(known.values()),
            own_ids(self.table),
            writing_of(metadata),
        )

    async def _commit(self, gone: Sequence[LiveFile], results: Sequence[Repaired], listing: Listing) -> None:
        places = {file.location for file in gone}
        change = Rewrite(
            operation="overwrite",
            gone=gone,
            files=[file for one in results for file in one.files],
            deletes_known=frozenset(file.location for file in listing.deletes),
            deletes_gone=frozenset(file.location for file in listing.deletes if file.about in places),
        )
        self.table = await rewrite(self.catalog, self.table, change)
        log.info("repair.committed table=%s files=%d", self.table.name, len(gone))


def no_schema(named: NamedTopic) -> Unsupported:
    return Unsupported(f"topic {named.name} has no schema: set lakestream.value.schema, then its rows have columns")


def _waiting(listing: Listing, done: RepairDone) -> list[LiveFile]:
    """In order."""
    done.left += [reason for reason in untold(listing.data) if reason not in done.left]
    return sorted(filter(is_told, listing.data), key=lambda file: (file.partition, file.offset_first or 0))


def _note(done: RepairDone, file: LiveFile, result: Result) -> None:
    if isinstance(result, NotDone):
        done.left.append(result.reason)
    if not isinstance(result, Repaired) or not (result.rows_before or result.misfits or result.gone):
        return
    done.files += 1
    done.files_written += len(result.files)
    done.rows_before += result.rows_before
    done.rows_after += result.rows_after if result.gone else max(result.rows_after, 0)
    for misfits in result.misfits:
        reason = Reason(misfits.reason, misfits.schema_id)
        done.reasons[reason] += misfits.count
        done.firsts.setdefault(reason, (file.partition, misfits.offset))
