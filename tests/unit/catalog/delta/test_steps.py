"""Which commits lead to what Iceberg lists."""

from tests.unit.catalog.tables import new_table, snapshot

from lakestream.catalog.delta.actions import Action, Add, MetaData, Protocol, decoded, encoded
from lakestream.catalog.delta.checkpoint import checkpoint_of, state_at
from lakestream.catalog.delta.paths import key_of, path_of
from lakestream.catalog.delta.shadows import shadowed
from lakestream.catalog.delta.state import State
from lakestream.catalog.delta.steps import STOPS_MAX, Stop, Table, changed, commit_of, stops
from lakestream.catalog.listing import LiveFile
from lakestream.catalog.shapes import Json

NOW = 5


def table(*operations: str) -> Json:
    """With a snapshot for each, one after the other."""
    snapshots = [
        snapshot(10 + number, number, 9 + number if number > 1 else None) | {"summary": {"operation": operation}}
        for number, operation in enumerate(operations, 1)
    ]
    made = {**new_table(), "snapshots": snapshots, "last-sequence-number": len(operations)}
    made["refs"] = {"main": {"snapshot-id": 10 + len(operations), "type": "branch"}}
    return made


def numbers(found: list[Stop]) -> list[tuple[int, int | None]]:
    return [(stop.sequence_number, stop.same_rows_as) for stop in found]


def test_one_step_over_what_only_adds() -> None:
    made = table("append", "append", "overwrite", "append")
    assert numbers(stops(made, 1)) == [(4, None)]
    assert numbers(stops(made, 4)) == [(4, None)]
    assert numbers(stops(made, None)) == [(4, None)]
    assert stops(new_table(), None) == []


def test_stops_around_rows_that_were_written_anew() -> None:
    made = table("append", "append", "replace", "append", "replace", "replace", "append")
    assert numbers(stops(made, 1)) == [(2, None), (3, 2), (4, None), (5, 4), (6, 5), (7, None)]
    assert numbers(stops(made, 2)) == [(3, 2), (4, None), (5, 4), (6, 5), (7, None)]
    assert numbers(stops(made, 6)) == [(7, None)]


def test_what_is_not_known_is_one_step() -> None:
    made = table("append", "replace", "append")
    assert numbers(stops(made, 9)) == [(3, None)], "it was rolled back"
    made["snapshots"] = made["snapshots"][1:]
    assert numbers(stops(made, 1)) == [(3, None)], "where Delta is has expired"
    made["snapshots"][0]["sequence-number"] = 1
    assert numbers(stops(table(*["append", "replace"] * STOPS_MAX), 1)) == [(2 * STOPS_MAX, None)]


def test_a_commit_says_what_changed() -> None:
    made = table("append", "replace")
    about = Table.of(made, State())
    first = commit_of(State(), about, Stop(made["snapshots"][0]), [Add("a", {}, 1, 2, stats="{}")], frozenset(), NOW)
    assert [name for action in first for name in _names(action)] == [
        "commit_info",
        "protocol",
        "meta_data",
        "txn",
        "add",
    ]
    state = State().after(0, decoded(encoded(first), "x"))
    assert state.protocol == Protocol(1, 2)
    assert state.transactions == {made["table-uuid"]: 1}
    assert commit_of(state, Table.of(made, state), Stop(made["snapshots"][0]), [], frozenset(), NOW) == []
    assert tuple(changed(state, frozenset({"b"}))) == (frozenset({"b"}), frozenset({"a"}))
    stop = Stop(made["snapshots"][1], 1)
    second = commit_of(state, Table.of(made, state), stop, [Add("b", {}, 1)], frozenset({"a"}), NOW)
    assert [name for action in second for name in _names(action)] == ["commit_info", "txn", "remove", "add"]
    assert [action.add.data_change for action in second if action.add] == [False]
    elsewhere = State(0, state.protocol, state.metadata, {made["table-uuid"]: 0}, state.files)
    third = commit_of(elsewhere, Table.of(made, state), stop, [Add("b", {}, 1)], frozenset({"a"}), NOW)
    assert [action.add.data_change for action in third if action.add] == [True], "rows are new to it"


def _names(action: Action) -> list[str]:
    return [name for name in action.__struct_fields__ if getattr(action, name) is not None]


def test_a_checkpoint_is_the_state() -> None:
    metadata = MetaData("id", '{"type":"struct","fields":[]}', configuration={"a": "b"}, created_time=3)
    files = {"a": Add("a", {}, 1, 2, False, '{"numRecords":1}'), "b%20c": Add("b%20c", {}, 5, 6, False)}
    state = State(7, Protocol(3, 7, ("columnMapping",), ("columnMapping",)), metadata, {"t": 9}, files)
    body, count = checkpoint_of(state)
    assert count == 5
    again = state_at(7, [body], "x")
    assert (again.version, again.checkpoint) == (7, 7)
    assert (again.protocol, again.metadata, again.transactions) == (state.protocol, metadata, {"t": 9})
    assert again.files == files


def test_what_others_made_of_it_is_said() -> None:
    metadata = MetaData("id", "{}")
    assert State().strange() == ""
    assert State(0, Protocol(1, 2), metadata).strange() == ""
    known = State(0, Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)), metadata)
    assert known.strange() == "somebody switched on its feature deletionVectors"
    assert "partitioned" in State(0, Protocol(1, 2), MetaData("id", "{}", partition_columns=("a",))).strange()


def test_paths() -> None:
    assert path_of("t/data/partition=0/a.parquet", "t/data") == "partition=0/a.parquet"
    assert path_of("t/other/a.parquet", "t/data") is None
    assert path_of("t/data2/a.parquet", "t/data") is None
    for odd in ("a b/c%20d/ü#?:x=1.parquet", "100%/+&.parquet"):
        path = path_of(f"t/data/{odd}", "t/data")
        assert path is not None
        assert not set(path) & set(" #?:")
        assert key_of(path, "t/data") == f"t/data/{odd}"


def file(name: str, sequence_number: int, content: int = 0, partition: int = 0, about: str | None = None) -> LiveFile:
    return LiveFile(name, content, True, 0, partition, 0, 9, None, None, 10, 100, sequence_number, 0, about)


def test_files_with_rows_that_were_deleted() -> None:
    data = [file("a", 1), file("b", 2), file("c", 3, partition=1), file("d", 5)]

    def found(*deletes: LiveFile) -> list[str]:
        return [one.location for one in shadowed(data, deletes)]

    assert found() == []
    assert found(file("x", 4, 1, about="b")) == ["b"]
    assert found(file("x", 4, 1)) == ["a", "b"], "of one partition, of files that were there"
    assert found(file("x", 2, 1, partition=-1)) == ["a", "b"]
    assert found(file("x", 3, 2, partition=-1)) == ["a", "b"], "by equality: of rows that came before"
    assert found(file("x", 1, 1, about="b")) == [], "it was written anew since"
