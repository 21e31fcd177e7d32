"""Rules of the way from the log into tables and back, switched off one by one (see mutants.py)."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from tests.simulation.mutant import Mutant, never, only_in

from lakestream.catalog import append, catalog, expire, rewrite
from lakestream.catalog.append import main_at
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import MovedRange
from lakestream.catalog.errors import CommitUnknown
from lakestream.catalog.listing import partition_fields
from lakestream.catalog.next_offsets import NEXT_OFFSETS, main_of
from lakestream.catalog.orphans import remove_orphans
from lakestream.catalog.pointers import Found, Pointers
from lakestream.catalog.updates import AddSnapshot, SetSnapshotRef
from lakestream.catalog.whole_tag import WHOLE_TAG
from lakestream.data.log.log import Bounds, Log
from lakestream.data.table import replay
from lakestream.data.table.replay import Replay
from lakestream.data.table.rows import joined
from lakestream.data.table.snapshots import Snapshots, Table
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.claims import Claim, Claims, Kind
from lakestream.metadata.store import put_one
from lakestream.model import PartitionId
from lakestream.pipeline import backlog, rounds
from lakestream.pipeline.backlog import backlog_of
from lakestream.pipeline.maintenance import maintain
from lakestream.pipeline.plan import Backlog, Spot
from lakestream.pipeline.rounds import Rounds
from lakestream.pipeline.whole import Part, Transaction, Whereabouts
from lakestream.pipeline.whole import joined as joined_part

# ── plan ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Misread:
    """A log that says something else of its transactions."""

    def __init__(self, logs: Log, *, stable: bool = True, aborted: bool = True) -> None:
        self._logs = logs
        self._stable = stable
        self._aborted = aborted
        self.claims = logs.claims

    async def bounds(self, partition: PartitionId) -> Bounds:
        found = await self._logs.bounds(partition)
        return found if self._stable else found._replace(stable=found.end)

    def aborted(self, partition: PartitionId, start: int, end: int) -> list[Any]:
        return self._logs.aborted(partition, start, end) if self._aborted else []


async def _to_the_end(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    misread: Any = _Misread(logs, stable=False)
    return await backlog_of(misread, partition, start, without_deleted=without_deleted)


async def _none_aborted(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    misread: Any = _Misread(logs, aborted=False)
    return await backlog_of(misread, partition, start, without_deleted=without_deleted)


async def _never_deleted(logs: Any, partition: PartitionId, start: int, *, without_deleted: bool) -> Backlog | None:
    return await backlog_of(logs, partition, start, without_deleted=True)


def _late_ones_too(claim: Claim, created_ms: int, aborted: Any, deleted_to: int) -> Any:
    offset = claim.offset_start
    for batch in claim.batches:
        end = offset + batch.record_count
        is_rows = batch.kind < Kind.COMMIT
        yield Spot(offset, end, batch.byte_start, batch.byte_end, claim.medium, claim.name, is_rows)
        offset = end


async def _trimmed_to_table_end(self: Claims, partition: PartitionId) -> int:
    return await self.table_end(partition)


# ── commit and trim ──────────────────────────────────────────────────────────────────────────────────────────────────

_commit = Rounds._commit
_commit_one = Rounds._commit_one
_load_id = Catalog.load_id


def _ends_anywhere(ranges: Sequence[MovedRange], starts: Mapping[int, int]) -> dict[int, int]:
    return {moved.partition: max(moved.end, starts.get(moved.partition, 0)) for moved in ranges}


async def _trim_first(self: Rounds, outcomes: Sequence[Any], done: Any) -> None:
    for outcome in outcomes:
        with suppress(LakestreamError):
            await self._claims.advance_table_end(outcome.move.partition, outcome.move.end)
            self._sweeper.note_dropped(await self._logs.trim(outcome.move.partition, outcome.move.end))
    await _commit(self, outcomes, done)


async def _believe_in_the_plan(self: Rounds, topic_id: str, moved: Sequence[Any]) -> bool:
    done = await _commit_one(self, topic_id, moved)
    for one in moved:
        with suppress(LakestreamError):
            await self._claims.advance_table_end(one.move.partition, one.move.end + 1)
    return done


async def _trim_what_was_refused(self: Rounds, topic_id: str, moved: Sequence[Any]) -> bool:
    try:
        return await _commit_one(self, topic_id, moved)
    except LakestreamError:
        for one in moved:
            with suppress(LakestreamError):
                await self._claims.advance_table_end(one.move.partition, one.move.end)
        raise


async def _remove_after_doubt(self: Rounds, topic_id: str, moved: Sequence[Any]) -> bool:
    try:
        return await _commit_one(self, topic_id, moved)
    except CommitUnknown:
        await self._remove(moved)
        raise


async def _surely_not_moved(self: Catalog, base: Found, file: Any, error: LakestreamError) -> Found | None:
    return None


async def _short_log_is_proof(self: Catalog, base: Found, file: Any, error: LakestreamError) -> Found | None:
    found = await self.pointers.find_id(base.table_id, confirmed=True)
    if found.table.metadata_location == file.location:
        return found
    newest = await self._files.read(found.table.metadata_location)
    known = {entry["metadata-file"] for entry in newest.content["metadata-log"]}
    return found if file.location in known else None


async def _move_blindly(self: Pointers, found: Found, metadata_location: str, location: str) -> Found:
    moved = msgspec.structs.replace(found.table, metadata_location=metadata_location, location=location)
    stored = await put_one(self._store, keys.table_key(found.table_id), msgspec.json.encode(moved))
    return Found(found.table_id, moved, stored.version, stored.created_ms)


async def _load_anywhere(self: Catalog, table_id: str, *, confirmed: bool = False) -> LoadedTable:
    return await _load_id(self, table_id)


# ── maintenance ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_any_main(self: Any, snapshot: Any, now: Any) -> list[Any]:
    late = {**snapshot, "sequence-number": now["last-sequence-number"] + 1}
    return [AddSnapshot(late), main_at(self._snapshot_id, now)]


async def _young_orphans(
    catalog: Any, table_id: str, listings: Any, now_ms: int, settings: Any, after: str, kept: Any
) -> Any:
    return await remove_orphans(catalog, table_id, listings, now_ms, replace(settings, age_ms=1_000), after, kept)


async def _all_that_went(listings: Any, before: Any, after: Any, gone: Any) -> list[str]:
    """Also what snapshots that stay name."""
    listed = await expire._manifests(listings, gone)
    places = partition_fields(before)
    return [path for one in listed.values() for path in (await listings.manifest(one, places)).named]


# ── history ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _any_table(self: Snapshots, partition: PartitionId, offset: int) -> Table:
    return await self.newest(partition.topic_id, 10**9)


async def _asked_once(self: Replay, partition: PartitionId, offset: int | None, ask: Any) -> Any:
    table = await self._snapshots.reaching(partition, offset or 0)
    try:
        return await ask(table)
    except Missing as error:
        raise replay._missing(table, error) from error


# ── whole transactions ───────────────────────────────────────────────────────────────────────────────────────────────


async def _one_look(
    logs: Log, partitions: Sequence[PartitionId], starts: Mapping[int, int], backlogs: Sequence[Backlog]
) -> Whereabouts:
    """Only what is there to be moved is known of the transactions."""
    found: dict[Transaction, dict[int, Part]] = {}
    for one in backlogs:
        for spot in one.spots:
            if spot.transaction is not None:
                number, parts = one.partition.number, found.setdefault(spot.transaction, {})
                parts[number] = joined_part(parts.get(number), spot.offset, spot.offset_end)
    return Whereabouts(found, {one.number: await logs.end_for_certain(one) for one in partitions})


def _all_is_whole(metadata: Any) -> dict[int, int]:
    return {}


def _with_every_main(before: Any, after: Any) -> Any:
    """The tag goes along, wherever it was."""
    main = main_of(after)
    is_new = main is not None and main != main_of(before) and WHOLE_TAG in before["refs"]
    offsets = [one["properties"].get(NEXT_OFFSETS) for one in (before, after)]
    return SetSnapshotRef(WHOLE_TAG, "tag", main) if main is not None and is_new and offsets[0] == offsets[1] else None


TABLES = ("tables", "restarts")
READ = ("tables", "slow readers")

TABLE_MUTANTS = (
    Mutant(
        "a range follows what the table has",
        "files are committed wherever the table ends",
        [(append, "ends_of", _ends_anywhere), (rounds, "ends_of", _ends_anywhere)],
        TABLES,
    ),
    Mutant(
        "a pointer moves from where it was seen",
        "a table's pointer is written over",
        [(Pointers, "move", _move_blindly)],
        TABLES,
    ),
    Mutant(
        "commit before trim", "what is to be committed is trimmed first", [(Rounds, "_commit", _trim_first)], TABLES
    ),
    Mutant(
        "trim only what was committed",
        "a table's end goes further than its commit",
        [(Rounds, "_commit_one", _believe_in_the_plan)],
        TABLES,
    ),
    Mutant(
        "trim nothing that was refused",
        "a table's end moves although its commit failed",
        [(Rounds, "_commit_one", _trim_what_was_refused)],
        ("tables", "doubt"),
    ),
    Mutant(
        "files of an unknown commit stay",
        "files are removed when nobody knows whether the table has them",
        [(Rounds, "_commit_one", _remove_after_doubt)],
        ("doubt",),
    ),
    Mutant(
        "a commit whose answer was lost is looked for",
        "a pointer that did not say is taken for one that did not move",
        [(Catalog, "_look_again", _surely_not_moved)],
        ("doubt",),
    ),
    Mutant(
        "a log of files that is too short proves nothing",
        "who is not named in the newest metadata believes that he was refused",
        [(Catalog, "_look_again", _short_log_is_proof)],
        ("doubt",),
    ),
    Mutant(
        "what is missing in a table is confirmed",
        "an old leader's word is taken for it",
        [(Catalog, "load_id", _load_anywhere)],
        ("tables deposed",),
    ),
    Mutant(
        "only what is stable becomes rows",
        "open transactions are moved too",
        [(rounds, "backlog_of", _to_the_end)],
        TABLES,
    ),
    Mutant(
        "transactions are looked for where they have nothing to move, too",
        "what a transaction has beyond is not known",
        [(rounds, "whereabouts", _one_look)],
        TABLES,
    ),
    Mutant(
        "it is remembered how far split transactions go",
        "what a round does not split is whole",
        [(rounds, "split_of", _all_is_whole)],
        TABLES,
    ),
    Mutant(
        "a rewrite of what is split is split",
        "the tag goes along with every change of others",
        [(catalog, "following", _with_every_main)],
        TABLES,
    ),
    Mutant(
        "aborted records do not become rows",
        "nobody asks what was aborted",
        [(rounds, "backlog_of", _none_aborted)],
        TABLES,
    ),
    Mutant(
        "claims that came too late make no rows",
        "whatever is claimed is moved",
        [(backlog, "_spots", _late_ones_too)],
        ("sleepers",),
    ),
    Mutant(
        "the table remembers what the stream forgets",
        "deleted records make no rows",
        [(rounds, "backlog_of", _never_deleted)],
        ("kafka calm", "kafka lossy"),
    ),
    Mutant(
        "a crash before the trim is made up for",
        "what is below the table's end is taken for trimmed",
        [(Claims, "floor", only_in(("_backlog_now",), _trimmed_to_table_end, Claims.floor))],
        ("restarts", "crashes", "tables"),
    ),
    Mutant(
        "a rewrite replaces what it was made of",
        "a merge is put on top of whatever came since",
        [(rewrite._Attempt, "_updates", _on_any_main)],
        TABLES,
    ),
    Mutant(
        "files without a name are left alone for long",
        "orphans go after a second",
        [(maintain, "remove_orphans", _young_orphans)],
        TABLES,
    ),
    Mutant(
        "expiry spares what other snapshots name",
        "files go with the first snapshot that names them",
        [(expire, "_unnamed", _all_that_went)],
        TABLES,
    ),
    Mutant(
        "history is read from a table that reaches so far",
        "the table that is known is taken",
        [(Snapshots, "reaching", _any_table)],
        READ,
    ),
    Mutant(
        "a file that is gone is looked for in the newest table",
        "a file that expired is taken for lost",
        [(Replay, "_asked", _asked_once), (Replay, "_is_doubtful", never)],
        READ,
    ),
    Mutant(
        "rows are served by offset, whoever wrote them",
        "rows are served as they lie in the file",
        [(replay, "sorted_rows", joined)],
        READ,
    ),
)
