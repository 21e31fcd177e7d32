"""Updates of snapshots, branches, tags and the snapshot log. Pure; part of builder.py.

The rules of the reference implementation are enforced for every client: sequence numbers only grow, a branch or tag
points at an existing snapshot, and times never go back by more than a minute, because readers reject such a table.
"""

from typing import Final

from lakestream.catalog.errors import CommitFailed
from lakestream.catalog.table_metadata import updates as u
from lakestream.catalog.table_metadata.draft import ORDERS, SCHEMAS, SNAPSHOTS, SPECS, TableDraft
from lakestream.catalog.table_metadata.json_model import MAIN, NO_SNAPSHOT, Json, check_snapshot
from lakestream.errors import Rejected

CLOCK_TOLERANCE_MS: Final = 60_000
AHEAD_MS_MAX: Final = 24 * 60 * 60 * 1000
"""How far a snapshot's timestamp may be in the future: later snapshots cannot precede it, and it would not expire."""
PREVIOUS_FILES_MAX: Final = 100
SEQUENCE_STEP_MAX: Final = 2**31
"""By how much a snapshot may raise the sequence number. Engines raise it by one; no commit can follow the maximum."""
ROWS_ADDED_MAX: Final = 2**48
"""Of one snapshot: each row uses one of the table's row ids."""


def add_snapshot(draft: TableDraft, update: u.AddSnapshot) -> None:
    table, snapshot = draft.table, check_snapshot(update.snapshot)
    if not all(draft.entries(listed) for listed in (SCHEMAS, SPECS, ORDERS)):
        raise Rejected("a snapshot cannot be added before the table's schema, partition spec and sort order")
    if snapshot.snapshot_id in draft.entries(SNAPSHOTS):
        raise Rejected(f"snapshot {snapshot.snapshot_id} already exists")
    if snapshot.snapshot_id in draft.snapshots_removed:
        # The results of checks, as of its rows, belong to a snapshot id.
        raise Rejected(f"snapshot {snapshot.snapshot_id} is removed by the same commit: give the new one another id")
    if snapshot.timestamp_ms > draft.now_ms + AHEAD_MS_MAX:
        raise Rejected(
            f"timestamp of snapshot {snapshot.snapshot_id} is {snapshot.timestamp_ms - draft.now_ms} ms in the future:"
            " set the clock of its writer"
        )
    if table["format-version"] > 1:
        if snapshot.manifest_list is None or "operation" not in (snapshot.summary or {}):
            raise Rejected("a snapshot needs a manifest-list, and an operation in its summary")
        last = table["last-sequence-number"]
        if snapshot.sequence_number <= last and snapshot.parent_snapshot_id is not None:
            # A concurrent commit, perhaps to another branch: a retry uses a higher sequence number.
            raise CommitFailed(f"sequence number {snapshot.sequence_number} is not above the table's last, {last}")
        if snapshot.sequence_number > last + SEQUENCE_STEP_MAX:
            raise Rejected(
                f"sequence number {snapshot.sequence_number} is far above the table's last, {last}: use {last + 1}"
            )
        table["last-sequence-number"] = max(last, snapshot.sequence_number)
    if table["format-version"] >= 3:
        _number_rows(table, snapshot.first_row_id, snapshot.added_rows)
    draft.updated_ms = snapshot.timestamp_ms
    draft.snapshots_added.add(snapshot.snapshot_id)
    draft.put(SNAPSHOTS, snapshot.snapshot_id, update.snapshot)


def _number_rows(table: Json, first_row_id: int | None, added_rows: int | None) -> None:
    """Assigns a range of row ids to the snapshot: in format version 3 every row has an id."""
    following = table.get("next-row-id", 0)
    if first_row_id is None or added_rows is None or added_rows < 0:
        raise Rejected("a snapshot of a v3 table needs first-row-id and added-rows")
    if added_rows > ROWS_ADDED_MAX:
        raise Rejected(f"added-rows {added_rows}: a snapshot adds at most {ROWS_ADDED_MAX} rows")
    if first_row_id < following:
        raise CommitFailed(f"first-row-id {first_row_id} is behind the table's next, {following}")
    table["next-row-id"] = following + added_rows


def set_ref(draft: TableDraft, update: u.SetSnapshotRef) -> None:
    table, name = draft.table, update.ref_name
    if name == MAIN and update.type != "branch":
        raise Rejected("main is a branch and cannot become a tag")
    ref: Json = {"snapshot-id": update.snapshot_id, "type": update.type}
    if update.min_snapshots_to_keep is not None:
        ref["min-snapshots-to-keep"] = update.min_snapshots_to_keep
    if update.max_snapshot_age_ms is not None:
        ref["max-snapshot-age-ms"] = update.max_snapshot_age_ms
    if update.max_ref_age_ms is not None:
        ref["max-ref-age-ms"] = update.max_ref_age_ms
    if table["refs"].get(name) == ref and update.snapshot_id not in draft.snapshots_removed:
        return
    snapshot = draft.entries(SNAPSHOTS).get(update.snapshot_id)
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
        draft.log_of("snapshot-log").append(entry)
    draft.map_of("refs")[name] = ref


def remove_snapshots(draft: TableDraft, update: u.RemoveSnapshots) -> None:
    """Removes snapshots. `TableDraft.settle` removes what refers to them."""
    draft.snapshots_removed.update(update.snapshot_ids)
    draft.drop(SNAPSHOTS, update.snapshot_ids)


def remove_ref(draft: TableDraft, update: u.RemoveSnapshotRef) -> None:
    if update.ref_name in draft.table["refs"]:
        del draft.map_of("refs")[update.ref_name]
    if update.ref_name == MAIN:
        draft.table["current-snapshot-id"] = NO_SNAPSHOT


def trimmed_snapshot_log(table: Json, known: int, removed: bool) -> list[Json]:
    """Returns the snapshot log after the commit; its first `known` entries are from before it.

    Of the entries that the commit appended only the last one stays, and only if it is current: the others never were.
    If a snapshot was removed, the entries before it are removed too, because time travel through a gap would be wrong.
    """
    log: list[Json] = table["snapshot-log"]
    settled = [*log[:known], *(one for one in log[known:][-1:] if one["snapshot-id"] == table["current-snapshot-id"])]
    if not removed:
        return settled
    existing = {one["snapshot-id"] for one in table["snapshots"]}
    gap = max((place for place, entry in enumerate(settled) if entry["snapshot-id"] not in existing), default=-1)
    return settled[gap + 1 :]


def check_times(table: Json) -> None:
    """Rejects a commit whose snapshot log goes back in time: readers reject such a table."""
    log = table["snapshot-log"]
    latest = log[-1]["timestamp-ms"] if log else None
    before = log[-2]["timestamp-ms"] if len(log) > 1 else None
    if latest is not None and before is not None and latest < before - CLOCK_TOLERANCE_MS:
        raise Rejected(
            f"timestamp of the snapshot is {before - latest} ms before that of the table's last one: set the clock of"
            " its writer"
        )
    if latest is not None and table["last-updated-ms"] < latest - CLOCK_TOLERANCE_MS:
        raise Rejected(
            f"timestamp of the commit is {latest - table['last-updated-ms']} ms before that of the table's last"
            " snapshot: set the clock of its writer"
        )


def with_previous_file(table: Json, location: str, updated_ms: int) -> tuple[Json, list[str]]:
    """Returns the metadata with the previous file in its metadata log, and the files that were removed from the log."""
    log = [*table["metadata-log"], {"metadata-file": location, "timestamp-ms": updated_ms}]
    try:
        kept = max(1, int(table["properties"].get("write.metadata.previous-versions-max", PREVIOUS_FILES_MAX)))
    except ValueError:
        kept = PREVIOUS_FILES_MAX
    return {**table, "metadata-log": log[-kept:]}, [entry["metadata-file"] for entry in log[:-kept]]
