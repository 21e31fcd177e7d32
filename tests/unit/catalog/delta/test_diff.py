"""Commits that bring a Delta table to the state of the Iceberg table."""

import pytest
from tests.harness.catalog.iceberg_tables import new_table, snapshot

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, decoded, encoded
from lakestream.catalog.delta.checkpoint import read_checkpoint_file, write_checkpoint_file
from lakestream.catalog.delta.diff import (
    SYNC_POINTS_MAX,
    IcebergTable,
    SyncPoint,
    commit_actions,
    file_diff,
    files_with_deletes,
    sync_points,
)
from lakestream.catalog.delta.paths import key_of, path_of
from lakestream.catalog.delta.state import DeltaState
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.errors import Corrupt

NOW = 5


def table(*operations: str) -> Json:
    """Returns a table with one snapshot for each operation."""
    snapshots = [
        snapshot(10 + number, number, 9 + number if number > 1 else None) | {"summary": {"operation": operation}}
        for number, operation in enumerate(operations, 1)
    ]
    made = {**new_table(), "snapshots": snapshots, "last-sequence-number": len(operations)}
    made["refs"] = {"main": {"snapshot-id": 10 + len(operations), "type": "branch"}}
    return made


def numbers(found: list[SyncPoint]) -> list[tuple[int, int | None]]:
    return [(stop.sequence_number, stop.same_rows_as) for stop in found]


def test_appends_are_one_commit() -> None:
    made = table("append", "append", "overwrite", "append")
    assert numbers(sync_points(made, 1)) == [(4, None)]
    assert numbers(sync_points(made, 4)) == [(4, None)]
    assert numbers(sync_points(made, None)) == [(4, None)]
    assert sync_points(new_table(), None) == []


def test_replace_snapshots_get_separate_commits() -> None:
    made = table("append", "append", "replace", "append", "replace", "replace", "append")
    assert numbers(sync_points(made, 1)) == [(2, None), (3, 2), (4, None), (5, 4), (6, 5), (7, None)]
    assert numbers(sync_points(made, 2)) == [(3, 2), (4, None), (5, 4), (6, 5), (7, None)]
    assert numbers(sync_points(made, 6)) == [(7, None)]


def test_one_commit_when_snapshots_between_are_unknown() -> None:
    made = table("append", "replace", "append")
    assert numbers(sync_points(made, 9)) == [(3, None)], "the table was rolled back"
    made["snapshots"] = made["snapshots"][1:]
    assert numbers(sync_points(made, 1)) == [(3, None)], "the snapshot of the Delta table has expired"
    made["snapshots"][0]["sequence-number"] = 1
    assert numbers(sync_points(table(*["append", "replace"] * SYNC_POINTS_MAX), 1)) == [(2 * SYNC_POINTS_MAX, None)]


def test_commit_has_adds_and_removes() -> None:
    made = table("append", "replace")
    about = IcebergTable.of(made, DeltaState())
    first = commit_actions(
        DeltaState(), about, SyncPoint(made["snapshots"][0]), [Add("a", {}, 1, 2, stats="{}")], frozenset(), NOW
    )
    assert [name for action in first for name in _names(action)] == [
        "commit_info",
        "protocol",
        "meta_data",
        "txn",
        "add",
    ]
    state = DeltaState().after(0, decoded(encoded(first), "x"))
    assert state.protocol == Protocol(1, 2)
    assert state.transactions == {made["table-uuid"]: 1}
    assert (
        commit_actions(state, IcebergTable.of(made, state), SyncPoint(made["snapshots"][0]), [], frozenset(), NOW) == []
    )
    assert tuple(file_diff(state, frozenset({"b"}))) == (frozenset({"b"}), frozenset({"a"}))
    stop = SyncPoint(made["snapshots"][1], 1)
    second = commit_actions(state, IcebergTable.of(made, state), stop, [Add("b", {}, 1)], frozenset({"a"}), NOW)
    assert [name for action in second for name in _names(action)] == ["commit_info", "txn", "remove", "add"]
    assert [action.add.data_change for action in second if action.add] == [False]
    elsewhere = DeltaState(0, state.protocol, state.metadata, {made["table-uuid"]: 0}, state.files)
    third = commit_actions(elsewhere, IcebergTable.of(made, state), stop, [Add("b", {}, 1)], frozenset({"a"}), NOW)
    assert [action.add.data_change for action in third if action.add] == [True], "the rows are new"


def _names(action: Action) -> list[str]:
    return [name for name in action.__struct_fields__ if getattr(action, name) is not None]


def test_checkpoint_round_trips_the_state() -> None:
    metadata = MetaData("id", '{"type":"struct","fields":[]}', configuration={"a": "b"}, created_time=3)
    files = {"a": Add("a", {}, 1, 2, False, '{"numRecords":1}'), "b%20c": Add("b%20c", {}, 5, 6, False)}
    state = DeltaState(7, Protocol(3, 7, ("columnMapping",), ("columnMapping",)), metadata, {"t": 9}, files)
    body, count = write_checkpoint_file(state)
    assert count == 5
    again = read_checkpoint_file(7, [body], "x")
    assert (again.version, again.checkpoint) == (7, 7)
    assert (again.protocol, again.metadata, again.transactions) == (state.protocol, metadata, {"t": 9})
    assert again.files == files


def test_unsupported_changes_by_engines_are_reported() -> None:
    metadata = MetaData("id", "{}")
    assert DeltaState().unsupported() == ""
    assert DeltaState(0, Protocol(1, 2), metadata).unsupported() == ""
    known = DeltaState(0, Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)), metadata)
    assert known.unsupported() == "an engine enabled its table feature deletionVectors"
    assert "partitioned" in DeltaState(0, Protocol(1, 2), MetaData("id", "{}", partition_columns=("a",))).unsupported()


def test_paths_and_keys_convert_both_ways() -> None:
    assert path_of("t/data/partition=0/a.parquet", "t/data") == "partition=0/a.parquet"
    assert path_of("t/other/a.parquet", "t/data") is None
    assert path_of("t/data2/a.parquet", "t/data") is None
    for odd in ("a b/c%20d/ü#?:x=1.parquet", "100%/+&.parquet"):
        path = path_of(f"t/data/{odd}", "t/data")
        assert path is not None
        assert not set(path) & set(" #?:")
        assert key_of(path, "t/data") == f"t/data/{odd}"


def file(
    name: str, sequence_number: int, content: int = 0, partition: int = 0, referenced_file: str | None = None
) -> LiveFile:
    return LiveFile(name, content, True, 0, partition, 0, 9, None, None, 10, 100, sequence_number, 0, referenced_file)


def test_files_with_deletes() -> None:
    data = [file("a", 1), file("b", 2), file("c", 3, partition=1), file("d", 5)]

    def found(*deletes: LiveFile) -> list[str]:
        return [one.location for one in files_with_deletes(data, deletes)]

    assert found() == []
    assert found(file("x", 4, 1, referenced_file="b")) == ["b"]
    assert found(file("x", 4, 1)) == ["a", "b"], "of the same partition, of earlier files"
    assert found(file("x", 2, 1, partition=-1)) == ["a", "b"]
    assert found(file("x", 3, 2, partition=-1)) == ["a", "b"], "equality deletes apply to earlier files"
    assert found(file("x", 1, 1, referenced_file="b")) == [], "the file was rewritten after the delete"


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"txn":{"appId":"\xff","version":1}}',
        b'{"commitInfo":{"a":' + b"[" * 5_000,
        b'{"txn":{"appId":"a","version":9223372036854775808}}',
        b'{"add":{"path":"a","size":1e40}}',
        b'{"protocol":{"minReaderVersion":2147483648,"minWriterVersion":1}}',
    ],
)
def test_commit_of_the_log_is_not_read_when_it_is_not_valid(line: bytes) -> None:
    with pytest.raises(Corrupt, match="x is not a commit of a Delta table"):
        list(decoded(line, "x"))
