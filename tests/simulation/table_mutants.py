"""Mutants of the rules of pipeline, table commits, maintenance and history reads (see mutants.py)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from tests.simulation.mutant import Mutant, never, only_in

from lakestream.catalog import catalog
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import CommitStateUnknown
from lakestream.catalog.manifests.data_file import MovedRange
from lakestream.catalog.operations import append, expire_snapshots, rewrite_files
from lakestream.catalog.operations.append import set_main
from lakestream.catalog.operations.remove_orphan_files import remove_orphans
from lakestream.catalog.pointers import Pointers, TableEntry
from lakestream.catalog.table_metadata.updates import AddSnapshot, SetSnapshotRef
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, main_of
from lakestream.catalog.topic_table.transactions_tag import WHOLE_TAG
from lakestream.data.log.log import Log, Offsets
from lakestream.data.table.arrow.row_arrays import joined
from lakestream.data.table.read import history_reader
from lakestream.data.table.read.history_reader import HistoryReader
from lakestream.data.table.read.snapshots import Snapshots, TableSnapshot
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import BatchKind, Claim, Claims
from lakestream.metadata.store import put_one
from lakestream.model import PartitionId
from lakestream.pipeline import backlog, commit, micro_batch
from lakestream.pipeline.backlog import read_backlog
from lakestream.pipeline.commit import TableCommits
from lakestream.pipeline.maintenance import service
from lakestream.pipeline.micro_batch import MicroBatches
from lakestream.pipeline.plan import Backlog, LogBatch
from lakestream.pipeline.transaction_cut import TransactionId, TransactionPart, TransactionRanges
from lakestream.pipeline.transaction_cut import joined as joined_part

# ── plan ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _LogWithWrongTransactions:
    """A log that returns wrong transactions."""

    def __init__(self, logs: Log, *, stable: bool = True, aborted: bool = True) -> None:
        self._logs = logs
        self._stable = stable
        self._aborted = aborted
        self.claims = logs.claims

    async def bounds(self, partition: PartitionId) -> Offsets:
        bounds = await self._logs.bounds(partition)
        return bounds if self._stable else bounds._replace(stable=bounds.end)

    def aborted(self, partition: PartitionId, start: int, end: int) -> list[Any]:
        return self._logs.aborted(partition, start, end) if self._aborted else []


async def _read_to_the_end(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    log: Any = _LogWithWrongTransactions(logs, stable=False)
    return await read_backlog(log, partition, start, without_deleted=without_deleted)


async def _none_aborted(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    log: Any = _LogWithWrongTransactions(logs, aborted=False)
    return await read_backlog(log, partition, start, without_deleted=without_deleted)


async def _without_deleted(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    return await read_backlog(logs, partition, start, without_deleted=True)


def _with_stale_claims(claim: Claim, created_ms: int, aborted: Any, deleted_to: int) -> Any:
    offset = claim.offset_start
    for batch in claim.batches:
        end = offset + batch.record_count
        is_rows = batch.kind < BatchKind.COMMIT
        yield LogBatch(offset, end, batch.byte_start, batch.byte_end, claim.medium, claim.name, is_rows)
        offset = end


async def _trimmed_to_table_end(self: Claims, partition: PartitionId) -> int:
    return await self.table_end(partition)


# ── commit and trim ──────────────────────────────────────────────────────────────────────────────────────────────────

_commit = MicroBatches._commit
_commit_one = TableCommits._commit
_load_id = Catalog.load_id


def _accept_any_start(ranges: Sequence[MovedRange], starts: Mapping[int, int]) -> dict[int, int]:
    return {moved.partition: max(moved.end, starts.get(moved.partition, 0)) for moved in ranges}


async def _trim_first(self: MicroBatches, outcomes: Sequence[Any], ranges: Any) -> Any:
    for outcome in outcomes:
        with suppress(LakestreamError):
            await self._claims.advance_table_end(outcome.move.partition, outcome.move.end)
            self._cleanup._gc.note_dropped(await self._log.trim(outcome.move.partition, outcome.move.end))
    return await _commit(self, outcomes, ranges)


async def _advance_beyond_commit(self: TableCommits, topic_id: str, moved: Sequence[Any], ranges: Any) -> bool:
    done = await _commit_one(self, topic_id, moved, ranges)
    for one in moved:
        with suppress(LakestreamError):
            await self._cleanup._claims.advance_table_end(one.move.partition, one.move.end + 1)
    return done


async def _advance_after_rejection(self: TableCommits, topic_id: str, moved: Sequence[Any], ranges: Any) -> bool:
    try:
        return await _commit_one(self, topic_id, moved, ranges)
    except LakestreamError:
        for one in moved:
            with suppress(LakestreamError):
                await self._cleanup._claims.advance_table_end(one.move.partition, one.move.end)
        raise


async def _remove_after_unknown_result(self: TableCommits, topic_id: str, moved: Sequence[Any], ranges: Any) -> bool:
    try:
        return await _commit_one(self, topic_id, moved, ranges)
    except CommitStateUnknown:
        await self._remove(moved)
        raise


async def _assume_not_moved(self: Catalog, base: TableEntry, file: Any, error: LakestreamError) -> TableEntry | None:
    return None


async def _trust_short_log(self: Catalog, base: TableEntry, file: Any, error: LakestreamError) -> TableEntry | None:
    current = await self.pointers.find_id(base.table_id, confirmed=True)
    if current.table.metadata_location == file.location:
        return current
    newest = await self._files.read(current.table.metadata_location)
    known = {entry["metadata-file"] for entry in newest.content["metadata-log"]}
    return current if file.location in known else None


async def _move_unconditionally(
    self: Pointers, current: TableEntry, metadata_location: str, location: str
) -> TableEntry:
    moved = msgspec.structs.replace(current.table, metadata_location=metadata_location, location=location)
    stored = await put_one(self._store, keys.table_key(current.table_id), msgspec.json.encode(moved))
    return TableEntry(current.table_id, moved, stored.version, stored.created_ms)


async def _load_unconfirmed(self: Catalog, table_id: str, *, confirmed: bool = False) -> LoadedTable:
    return await _load_id(self, table_id)


# ── maintenance ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _replace_any_main(self: Any, snapshot: Any, now: Any) -> list[Any]:
    late = {**snapshot, "sequence-number": now["last-sequence-number"] + 1}
    return [AddSnapshot(late), set_main(self._snapshot_id, now)]


async def _remove_young_orphans(
    catalog: Any, table_id: str, listings: Any, now_ms: int, settings: Any, after: str, kept: Any
) -> Any:
    return await remove_orphans(catalog, table_id, listings, now_ms, replace(settings, age_ms=1_000), after, kept)


async def _no_named_files(loaded: Any, listings: Any) -> set[str]:
    """Returns no file, so that files of remaining snapshots are deleted, too."""
    return set()


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _newest_cached_table(self: Snapshots, partition: PartitionId, offset: int) -> TableSnapshot:
    return await self.newest(partition.topic_id, 10**9)


async def _query_once(self: HistoryReader, partition: PartitionId, offset: int | None, query: Any) -> Any:
    table = await self._snapshots.covering(partition, offset or 0)
    try:
        return await query(table)
    except Missing as error:
        raise history_reader._missing(table, error) from error


# ── whole transactions ───────────────────────────────────────────────────────────────────────────────────────────────


async def _ranges_of_backlogs(
    logs: Log, partitions: Sequence[PartitionId], starts: Mapping[int, int], backlogs: Sequence[Backlog]
) -> TransactionRanges:
    """Returns the ranges of transactions within the backlogs only."""
    ranges: dict[TransactionId, dict[int, TransactionPart]] = {}
    for one in backlogs:
        for spot in one.batches:
            if spot.transaction is not None:
                number, parts = one.partition.number, ranges.setdefault(spot.transaction, {})
                parts[number] = joined_part(parts.get(number), spot.offset, spot.offset_end)
    return TransactionRanges(ranges, {one.number: await logs.confirmed_end(one) for one in partitions})


def _none_incomplete(metadata: Any) -> dict[int, int]:
    return {}


def _tag_every_main(before: Any, after: Any) -> Any:
    """Moves the tag to the new snapshot, wherever it was before."""
    main = main_of(after)
    is_new = main is not None and main != main_of(before) and WHOLE_TAG in before["refs"]
    offsets = [one["properties"].get(NEXT_OFFSETS) for one in (before, after)]
    return SetSnapshotRef(WHOLE_TAG, "tag", main) if main is not None and is_new and offsets[0] == offsets[1] else None


TABLES = ("tables", "restarts")
READ = ("tables", "slow readers")

TABLE_MUTANTS = (
    Mutant(
        "a range starts at the table's next offset",
        "files are committed whatever the table's next offset is",
        [(append, "ends_of", _accept_any_start), (commit, "ends_of", _accept_any_start)],
        TABLES,
    ),
    Mutant(
        "a pointer is written by compare-and-set",
        "a table's pointer is overwritten",
        [(Pointers, "move", _move_unconditionally)],
        TABLES,
    ),
    Mutant(
        "records are committed before they are trimmed",
        "records are trimmed before the commit",
        [(MicroBatches, "_commit", _trim_first)],
        TABLES,
    ),
    Mutant(
        "only committed records are trimmed",
        "a table end is advanced beyond its commit",
        [(TableCommits, "_commit", _advance_beyond_commit)],
        TABLES,
    ),
    Mutant(
        "records of a rejected commit are not trimmed",
        "a table end is advanced although its commit failed",
        [(TableCommits, "_commit", _advance_after_rejection)],
        ("tables", "unknown commits"),
    ),
    Mutant(
        "files of a commit with an unknown result stay",
        "files are removed although the table may have them",
        [(TableCommits, "_commit", _remove_after_unknown_result)],
        ("unknown commits",),
    ),
    Mutant(
        "a commit with a lost response is resolved",
        "a pointer write with a lost response is taken for failed",
        [(Catalog, "_resolve_commit", _assume_not_moved)],
        ("unknown commits",),
    ),
    Mutant(
        "a short metadata log does not prove a failed commit",
        "a commit that is missing in the newest metadata is taken for failed",
        [(Catalog, "_resolve_commit", _trust_short_log)],
        ("unknown commits",),
    ),
    Mutant(
        "a stale table is confirmed before an error",
        "the table of an old leader is used",
        [(Catalog, "load_id", _load_unconfirmed)],
        ("tables deposed",),
    ),
    Mutant(
        "only records below the last stable offset become rows",
        "open transactions are moved, too",
        [(micro_batch, "read_backlog", _read_to_the_end)],
        TABLES,
    ),
    Mutant(
        "ranges of transactions include partitions without backlog",
        "ranges of transactions end with the backlogs",
        [(micro_batch, "read_transaction_ranges", _ranges_of_backlogs)],
        TABLES,
    ),
    Mutant(
        "the table remembers incomplete transactions",
        "a snapshot is whole if its own micro-batch splits no transaction",
        [(commit, "incomplete_offsets", _none_incomplete), (micro_batch, "incomplete_offsets", _none_incomplete)],
        TABLES,
    ),
    Mutant(
        "a rewrite of a snapshot that is not whole gets no tag",
        "the tag moves with every change by other writers",
        [(catalog, "carry_tag", _tag_every_main)],
        TABLES,
    ),
    Mutant(
        "aborted records do not become rows",
        "aborted records are moved, too",
        [(micro_batch, "read_backlog", _none_aborted)],
        TABLES,
    ),
    Mutant(
        "records of stale claims do not become rows",
        "records of all claims are moved",
        [(backlog, "_log_batches", _with_stale_claims)],
        ("sleepers",),
    ),
    Mutant(
        "records deleted from the log become rows",
        "deleted records are not moved",
        [(micro_batch, "read_backlog", _without_deleted)],
        ("kafka calm", "kafka lossy"),
    ),
    Mutant(
        "a trim that a crash prevented is repeated",
        "claims below the table end are taken for trimmed",
        [(Claims, "floor", only_in(("is_trimmed",), _trimmed_to_table_end, Claims.floor))],
        ("restarts", "crashes", "tables"),
    ),
    Mutant(
        "a rewrite is committed only on its base snapshot",
        "a merge is committed on top of any newer snapshot",
        [(rewrite_files._RewriteAttempt, "_updates", _replace_any_main)],
        TABLES,
    ),
    Mutant(
        "young orphan files are kept",
        "orphan files are deleted after a second",
        [(service, "remove_orphans", _remove_young_orphans)],
        TABLES,
    ),
    Mutant(
        "expiration keeps files of remaining snapshots",
        "files are deleted with the first snapshot that names them",
        [(expire_snapshots, "named_keys", _no_named_files)],
        TABLES,
    ),
    Mutant(
        "history is read from a snapshot that has the offset",
        "any cached snapshot is used",
        [(Snapshots, "covering", _newest_cached_table)],
        READ,
    ),
    Mutant(
        "a missing file is retried with the newest snapshot",
        "an expired file is taken for lost",
        [(HistoryReader, "_queried", _query_once), (HistoryReader, "_drop_caches", never)],
        READ,
    ),
    Mutant(
        "rows are returned in offset order",
        "rows are returned in file order",
        [(history_reader, "sorted_rows", joined)],
        READ,
    ),
)
