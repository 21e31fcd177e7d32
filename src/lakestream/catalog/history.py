"""Snapshots, the branches and tags that point at them, and the logs of what was current when. Pure; part of draft.py.

Rules of the reference implementation, held here for every client: sequence numbers only grow, a branch or tag never
points at nothing, and times never go back by more than a minute, because readers refuse to load such a table at all.
"""

from typing import Final, Protocol

from lakestream.catalog import updates as u
from lakestream.catalog.errors import CommitRefused
from lakestream.catalog.shapes import MAIN, NO_SNAPSHOT, Json, check_snapshot
from lakestream.errors import Rejected

CLOCK_TOLERANCE_MS: Final = 60_000
PREVIOUS_FILES_MAX: Final = 100


class Changing(Protocol):
    """What a draft offers here."""

    table: Json
    now_ms: int
    snapshots_added: set[int]
    snapshots_removed: bool
    updated_ms: int | None


def add_snapshot(draft: Changing, update: u.AddSnapshot) -> None:
    table, snapshot = draft.table, check_snapshot(update.snapshot)
    if not table["schemas"] or not table["partition-specs"] or not table["sort-orders"]:
        raise Rejected("a snapshot comes after the schema, the partition spec and the sort order of its table")
    if any(known["snapshot-id"] == snapshot.snapshot_id for known in table["snapshots"]):
        raise Rejected(f"there is a snapshot {snapshot.snapshot_id} already")
    if table["format-version"] > 1:
        if snapshot.manifest_list is None or "operation" not in (snapshot.summary or {}):
            raise Rejected("a snapshot names its manifest-list, and its operation in the summary")
        last = table["last-sequence-number"]
        if snapshot.sequence_number <= last and snapshot.parent_snapshot_id is not None:
            # Another branch was committed to meanwhile: made again, it gets a higher one.
            raise CommitRefused(f"sequence number {snapshot.sequence_number} is not above the table's last, {last}")
        table["last-sequence-number"] = max(last, snapshot.sequence_number)
    if table["format-version"] >= 3:
        _number_rows(table, snapshot.first_row_id, snapshot.added_rows)
    draft.updated_ms = snapshot.timestamp_ms
    draft.snapshots_added.add(snapshot.snapshot_id)
    table["snapshots"] = [*table["snapshots"], update.snapshot]


def _number_rows(table: Json, first_row_id: int | None, added_rows: int | None) -> None:
    """v3 gives every row an id: a snapshot takes a range of them."""
    following = table.get("next-row-id", 0)
    if first_row_id is None or added_rows is None or added_rows < 0:
        raise Rejected("a snapshot of a v3 table has a first-row-id and says how many rows it added")
    if first_row_id < following:
        raise CommitRefused(f"first-row-id {first_row_id} is behind the table's next, {following}")
    table["next-row-id"] = following + added_rows


def set_ref(draft: Changing, update: u.SetSnapshotRef) -> None:
    table, name = draft.table, update.ref_name
    if name == MAIN and update.type != "branch":
        raise Rejected("main is a branch, and cannot become a tag")
    ref: Json = {"snapshot-id": update.snapshot_id, "type": update.type}
    if update.min_snapshots_to_keep is not None:
        ref["min-snapshots-to-keep"] = update.min_snapshots_to_keep
    if update.max_snapshot_age_ms is not None:
        ref["max-snapshot-age-ms"] = update.max_snapshot_age_ms
    if update.max_ref_age_ms is not None:
        ref["max-ref-age-ms"] = update.max_ref_age_ms
    if table["refs"].get(name) == ref:
        return
    snapshot = next((one for one in table["snapshots"] if one["snapshot-id"] == update.snapshot_id), None)
    if snapshot is None:
        raise Rejected(
            f"{update.type} {name} cannot point at snapshot {update.snapshot_id}, which the table does not have"
        )
    if update.snapshot_id in draft.snapshots_added:
        draft.updated_ms = snapshot["timestamp-ms"]
    if name == MAIN and table["current-snapshot-id"] != update.snapshot_id:
        draft.updated_ms = draft.now_ms if draft.updated_ms is None else draft.updated_ms
        table["current-snapshot-id"] = update.snapshot_id
        entry = {"snapshot-id": update.snapshot_id, "timestamp-ms": draft.updated_ms}
        table["snapshot-log"] = [*table["snapshot-log"], entry]
    table["refs"] = {**table["refs"], name: ref}


def remove_snapshots(draft: Changing, update: u.RemoveSnapshots) -> None:
    table, gone = draft.table, set(update.snapshot_ids)
    draft.snapshots_removed = True
    table["snapshots"] = [one for one in table["snapshots"] if one["snapshot-id"] not in gone]
    for listed in ("statistics", "partition-statistics"):
        if table.get(listed):
            table[listed] = [one for one in table[listed] if one["snapshot-id"] not in gone]
    for name in [name for name, ref in table["refs"].items() if ref["snapshot-id"] in gone]:
        _remove_ref(table, name)


def remove_ref(draft: Changing, update: u.RemoveSnapshotRef) -> None:
    _remove_ref(draft.table, update.ref_name)


def _remove_ref(table: Json, name: str) -> None:
    table["refs"] = {other: ref for other, ref in table["refs"].items() if other != name}
    if name == MAIN:
        table["current-snapshot-id"] = NO_SNAPSHOT


def settled_log(table: Json, added: set[int], removed: bool) -> list[Json]:
    """The log of what was current, without what never was: snapshots that this commit both added and passed over.
    A snapshot that was removed takes the log before it along, as time travel through a gap would be wrong."""
    log: list[Json] = table["snapshot-log"]
    if not added and not removed:
        return log
    there = {one["snapshot-id"] for one in table["snapshots"]}
    current = table["current-snapshot-id"]
    settled: list[Json] = []
    for entry in log:
        snapshot_id = entry["snapshot-id"]
        if snapshot_id not in there:
            settled = [] if removed else settled
        elif snapshot_id == current or snapshot_id not in added:
            settled.append(entry)
    return settled


def check_times(table: Json) -> None:
    """Readers refuse to load a table whose log goes back in time; so such a commit is refused here."""
    log = table["snapshot-log"]
    latest = log[-1]["timestamp-ms"] if log else None
    before = log[-2]["timestamp-ms"] if len(log) > 1 else None
    if latest is not None and before is not None and latest < before - CLOCK_TOLERANCE_MS:
        raise Rejected(
            f"the snapshot is dated {before - latest} ms before the last one of this table: set the clock of its writer"
        )
    if latest is not None and table["last-updated-ms"] < latest - CLOCK_TOLERANCE_MS:
        raise Rejected(f"the change is dated {latest - table['last-updated-ms']} ms before the table's last snapshot")


def with_previous_file(table: Json, location: str, updated_ms: int) -> tuple[Json, list[str]]:
    """The metadata with its predecessor's file in the log, and the files that fell out of that log."""
    log = [*table["metadata-log"], {"metadata-file": location, "timestamp-ms": updated_ms}]
    try:
        kept = max(1, int(table["properties"].get("write.metadata.previous-versions-max", PREVIOUS_FILES_MAX)))
    except ValueError:
        kept = PREVIOUS_FILES_MAX
    return {**table, "metadata-log": log[-kept:]}, [entry["metadata-file"] for entry in log[:-kept]]
