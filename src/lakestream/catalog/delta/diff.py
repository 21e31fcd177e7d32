"""Computes the commits that bring a Delta table to the state of the Iceberg table. Pure.

They are computed from states, not events: files that only the snapshot lists are added, files that only Delta lists are
removed. So the next commit repairs what was missed because of a crash or of another writer's commit.

One commit is enough, except for snapshots with the operation `replace`: a streaming reader of the Delta table must not
get the same rows again from other files. So there are separate commits before and after such a snapshot.

`files_with_deletes` returns files that Iceberg's delete files may apply to: readers of Delta would see deleted rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, Remove, Txn
from lakestream.catalog.delta.schema import MAPPING_ID_MAX, delta_schema, physical_names
from lakestream.catalog.delta.state import DeltaState
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.topic_table.field_names import parquet_names
from lakestream.catalog.topic_table.live_file import POSITION_DELETES, UNKNOWN_PARTITION, LiveFile
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, TOPIC_ID, ancestors

SYNC_POINTS_MAX: Final = 40
"""With more of them there is one commit: a streaming reader that is so far behind may read some rows twice."""
ENGINE: Final = "Lakestream"
SNAPSHOT_ID: Final = "lakestream.snapshot-id"

SETTINGS: Final[Mapping[str, str]] = {
    # Iceberg's maintenance deletes files, so a VACUUM must find none that is old enough.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": "20",
}
_OLD_FEATURES: Final = ("appendOnly", "invariants")
"""Implicit in old versions of the protocol; version 7 for writers must list them."""


class SyncPoint(NamedTuple):
    """A snapshot that gets its own commit in the Delta table."""

    snapshot: Json
    same_rows_as: int | None = None
    """The sequence number of the previous snapshot if that has the same rows, or None."""

    @property
    def sequence_number(self) -> int:
        number: int = self.snapshot.get("sequence-number", 0)
        return number


class IcebergTable(NamedTuple):
    """The metadata of the Iceberg table, and what is derived from it."""

    metadata: Json
    names: Mapping[int, str]
    """Of columns in files, by field id."""

    @classmethod
    def of(cls, metadata: Json, state: DeltaState) -> "IcebergTable":
        settled = {} if state.metadata is None else physical_names(state.metadata.schema_string)
        return cls(metadata, parquet_names(metadata["schemas"], settled))

    @property
    def app_id(self) -> str:
        """The appId of Delta's txn actions: the topic's id."""
        text: str = self.metadata["properties"].get(TOPIC_ID) or self.metadata["table-uuid"]
        return text


def sync_points(metadata: Json, committed: int | None) -> list[SyncPoint]:
    """Returns the snapshots to commit after the one with this sequence number, oldest first, up to `main`."""
    line = list(ancestors(metadata))
    if not line:
        return []
    newer = [one for one in line if committed is None or one.get("sequence-number", 0) > committed]
    before = line[len(newer)] if len(newer) < len(line) else None
    if not newer or before is None or before.get("sequence-number", 0) != committed:
        return [SyncPoint(line[0])]  # Delta is at `main`, or snapshots between were expired
    found = list(_sync_points(before, newer[::-1]))
    return found if len(found) <= SYNC_POINTS_MAX else [SyncPoint(line[0])]


def _sync_points(before: Json, newer: Sequence[Json]) -> Iterator[SyncPoint]:
    """`before`: the snapshot of the Delta table."""
    reached = before
    for snapshot in newer:
        if (snapshot.get("summary") or {}).get("operation") == "replace":
            if before is not reached:
                yield SyncPoint(before)
            yield SyncPoint(snapshot, before.get("sequence-number", 0))
            reached = snapshot
        before = snapshot
    if before is not reached:
        yield SyncPoint(before)


class FileDiff(NamedTuple):
    added: frozenset[str]
    removed: frozenset[str]


def file_diff(state: DeltaState, paths: frozenset[str]) -> FileDiff:
    listed = frozenset(path for path, add in state.files.items() if add.deletion_vector is None)
    return FileDiff(paths - listed, frozenset(state.files) - paths)


def commit_actions(
    state: DeltaState, table: IcebergTable, point: SyncPoint, adds: Sequence[Add], removed: frozenset[str], now_ms: int
) -> list[Action]:
    """Returns the actions of a commit; none if the Delta table has the snapshot. `adds`: without dataChange."""
    about = list(_table_actions(state, table, now_ms))
    committed = state.transactions.get(table.app_id)
    if not about and not adds and not removed and committed == point.sequence_number:
        return []
    changes = point.same_rows_as is None or point.same_rows_as != committed
    summary = point.snapshot.get("summary") or {}
    info: Json = {
        "timestamp": now_ms,
        "operation": "WRITE" if changes else "OPTIMIZE",
        "operationParameters": {},
        "isBlindAppend": not removed,
        "engineInfo": ENGINE,
        SNAPSHOT_ID: str(point.snapshot["snapshot-id"]),
        NEXT_OFFSETS: summary.get(NEXT_OFFSETS) or table.metadata["properties"].get(NEXT_OFFSETS, "{}"),
    }
    return [
        Action(commit_info=info),
        *about,
        Action(txn=Txn(table.app_id, point.sequence_number, now_ms)),
        *(Action(remove=_removed(state.files[path], changes, now_ms)) for path in sorted(removed)),
        *(Action(add=_changing(add, changes)) for add in adds),
    ]


def _removed(add: Add, changes: bool, now_ms: int) -> Remove:
    return Remove(add.path, now_ms, changes, True, add.partition_values or {}, add.size)


def _changing(add: Add, changes: bool) -> Add:
    return Add(add.path, add.partition_values, add.size, add.modification_time, changes, add.stats)


def _table_actions(state: DeltaState, table: IcebergTable, now_ms: int) -> Iterator[Action]:
    """Yields the protocol and the metadata, if they have changed."""
    schema = delta_schema(schema_of(table.metadata), table.names, state.is_mapped)
    if (protocol := _protocol(state.protocol, schema.features)) != state.protocol:
        yield Action(protocol=protocol)
    before = state.metadata
    settings = {**SETTINGS, **({} if before is None else before.configuration), **schema.settings}
    if schema.settings:  # never decreases: a column id is not used twice
        settings[MAPPING_ID_MAX] = str(table.metadata["last-column-id"])
    if before is None or (before.schema_string, before.configuration) != (schema.text, settings):
        yield Action(
            meta_data=MetaData(
                id=table.metadata["table-uuid"] if before is None else before.id,
                schema_string=schema.text,
                configuration=settings,
                created_time=now_ms if before is None else before.created_time,
                name=None if before is None else before.name,
                description=None if before is None else before.description,
            )
        )


def _protocol(before: Protocol | None, features: Sequence[str]) -> Protocol:
    """Returns the protocol of the table, with the needed features added to those it has."""
    if before is None:
        before = Protocol(1, 2)
    if set(features) <= before.features:
        return before
    names = sorted({*features, *(before.reader_features or ())})
    return Protocol(3, 7, tuple(names), tuple(sorted({*names, *_OLD_FEATURES, *(before.writer_features or ())})))


def files_with_deletes(data: Sequence[LiveFile], deletes: Sequence[LiveFile]) -> Iterator[LiveFile]:
    """Yields the files that a delete file may apply to. A delete does not apply to files that were added after it."""
    if not deletes:
        return
    referenced: dict[str, int] = {}
    for one in deletes:
        if one.referenced_file is not None:
            referenced[one.referenced_file] = max(referenced.get(one.referenced_file, 0), one.sequence_number)
    of_any = [one for one in deletes if one.referenced_file is None]
    for file in data:
        if referenced.get(file.location, -1) >= file.sequence_number or any(_may_apply_to(one, file) for one in of_any):
            yield file


def _may_apply_to(delete: LiveFile, file: LiveFile) -> bool:
    if delete.content != POSITION_DELETES:  # equality deletes apply only to older files
        return delete.sequence_number > file.sequence_number
    both_known = UNKNOWN_PARTITION not in (delete.partition, file.partition)
    return delete.sequence_number >= file.sequence_number and not (both_known and delete.partition != file.partition)
