"""Which commits lead a Delta table to what Iceberg lists now. Pure.

By state, not by event: what a snapshot lists and Delta does not is added, what Delta lists and it does not is removed.
So whatever was missed, by a crash or by somebody else's commit, the next step brings along.

One commit goes all the way, but where rows were written anew (`replace` in Iceberg's words): the same rows in other
files must not look like new ones to who follows the Delta table as a stream. So there are stops before and after that.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, Remove, Transaction
from lakestream.catalog.delta.schema import MAPPING_ID_MAX, delta_schema, names_said
from lakestream.catalog.delta.state import State
from lakestream.catalog.next_offsets import NEXT_OFFSETS, TOPIC_ID, ancestors
from lakestream.catalog.parquet_names import parquet_names
from lakestream.catalog.shapes import Json, schema_of

STOPS_MAX: Final = 40
"""More, and it is one step: who was away for so long may read some rows twice as a stream."""
ENGINE: Final = "Lakestream"
SNAPSHOT_ID: Final = "lakestream.snapshot-id"

SETTINGS: Final[Mapping[str, str]] = {
    # Iceberg's maintenance removes files; a VACUUM shall find nothing that is old enough.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.checkpointInterval": "20",
}
_OLD_FEATURES: Final = ("appendOnly", "invariants")
"""Which the old versions of the protocol had without a word; the new one has to name them."""


class Stop(NamedTuple):
    """A snapshot that the Delta table is to be at."""

    snapshot: Json
    same_rows_as: int | None = None
    """The sequence number of the one before it, which has the same rows. None: it has others."""

    @property
    def sequence_number(self) -> int:
        number: int = self.snapshot.get("sequence-number", 0)
        return number


class Table(NamedTuple):
    """What is needed of Iceberg's metadata."""

    metadata: Json
    names: Mapping[int, str]
    """Of columns in files, by field id."""

    @classmethod
    def of(cls, metadata: Json, state: State) -> "Table":
        settled = {} if state.metadata is None else names_said(state.metadata.schema_string)
        return cls(metadata, parquet_names(metadata["schemas"], settled))

    @property
    def app_id(self) -> str:
        """Of Delta's application transactions: the topic's id."""
        text: str = self.metadata["properties"].get(TOPIC_ID) or self.metadata["table-uuid"]
        return text


def stops(metadata: Json, followed: int | None) -> list[Stop]:
    """From the snapshot with this sequence number on, oldest first; the last is where `main` is."""
    line = list(ancestors(metadata))
    if not line:
        return []
    newer = [one for one in line if followed is None or one.get("sequence-number", 0) > followed]
    before = line[len(newer)] if len(newer) < len(line) else None
    if not newer or before is None or before.get("sequence-number", 0) != followed:
        return [Stop(line[0])]  # it is there, or nobody knows what lies between
    found = list(_stops(before, newer[::-1]))
    return found if len(found) <= STOPS_MAX else [Stop(line[0])]


def _stops(before: Json, newer: Sequence[Json]) -> Iterator[Stop]:
    """`before`: where Delta is."""
    reached = before
    for snapshot in newer:
        if (snapshot.get("summary") or {}).get("operation") == "replace":
            if before is not reached:
                yield Stop(before)
            yield Stop(snapshot, before.get("sequence-number", 0))
            reached = snapshot
        before = snapshot
    if before is not reached:
        yield Stop(before)


class Changed(NamedTuple):
    added: frozenset[str]
    gone: frozenset[str]


def changed(state: State, paths: frozenset[str]) -> Changed:
    there = frozenset(path for path, add in state.files.items() if add.deletion_vector is None)
    return Changed(paths - there, frozenset(state.files) - paths)


def commit_of(
    state: State, table: Table, stop: Stop, adds: Sequence[Add], gone: frozenset[str], now_ms: int
) -> list[Action]:
    """Empty: the Delta table is there already. `adds`: without whether they change anything."""
    about = list(_about_table(state, table, now_ms))
    followed = state.transactions.get(table.app_id)
    if not about and not adds and not gone and followed == stop.sequence_number:
        return []
    changes = stop.same_rows_as is None or stop.same_rows_as != followed
    summary = stop.snapshot.get("summary") or {}
    info: Json = {
        "timestamp": now_ms,
        "operation": "WRITE" if changes else "OPTIMIZE",
        "operationParameters": {},
        "isBlindAppend": not gone,
        "engineInfo": ENGINE,
        SNAPSHOT_ID: str(stop.snapshot["snapshot-id"]),
        NEXT_OFFSETS: summary.get(NEXT_OFFSETS) or table.metadata["properties"].get(NEXT_OFFSETS, "{}"),
    }
    return [
        Action(commit_info=info),
        *about,
        Action(txn=Transaction(table.app_id, stop.sequence_number, now_ms)),
        *(Action(remove=_removed(state.files[path], changes, now_ms)) for path in sorted(gone)),
        *(Action(add=_changing(add, changes)) for add in adds),
    ]


def _removed(add: Add, changes: bool, now_ms: int) -> Remove:
    return Remove(add.path, now_ms, changes, True, add.partition_values or {}, add.size)


def _changing(add: Add, changes: bool) -> Add:
    return Add(add.path, add.partition_values, add.size, add.modification_time, changes, add.stats)


def _about_table(state: State, table: Table, now_ms: int) -> Iterator[Action]:
    """What it needs to be read, and its columns, where they have changed."""
    said = delta_schema(schema_of(table.metadata), table.names, state.is_mapped)
    if (protocol := _protocol(state.protocol, said.features)) != state.protocol:
        yield Action(protocol=protocol)
    before = state.metadata
    settings = {**SETTINGS, **({} if before is None else before.configuration), **said.settings}
    if said.settings:  # never less: a number is not given twice
        settings[MAPPING_ID_MAX] = str(table.metadata["last-column-id"])
    if before is None or (before.schema_string, before.configuration) != (said.text, settings):
        yield Action(
            meta_data=MetaData(
                id=table.metadata["table-uuid"] if before is None else before.id,
                schema_string=said.text,
                configuration=settings,
                created_time=now_ms if before is None else before.created_time,
                name=None if before is None else before.name,
                description=None if before is None else before.description,
            )
        )


def _protocol(before: Protocol | None, features: Sequence[str]) -> Protocol:
    """What it is, and more where that is needed; never less."""
    if before is None:
        before = Protocol(1, 2)
    if set(features) <= before.features:
        return before
    wanted = sorted({*features, *(before.reader_features or ())})
    return Protocol(3, 7, tuple(wanted), tuple(sorted({*wanted, *_OLD_FEATURES, *(before.writer_features or ())})))
