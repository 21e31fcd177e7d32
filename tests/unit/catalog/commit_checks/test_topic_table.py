"""Rules for commits of clients: properties, columns of the stream, rows."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from lakestream.catalog.commit_checks.topic_table import (
    DataFile,
    SnapshotPair,
    check_own_properties,
    check_rows,
    check_stream_columns_unchanged,
    check_summaries,
    snapshots_to_check,
)
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS
from lakestream.errors import Rejected

# Properties


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {NEXT_OFFSETS: "{}"}),
        ({NEXT_OFFSETS: "{}"}, {}),
        ({NEXT_OFFSETS: '{"0":1}'}, {NEXT_OFFSETS: '{"0":2}'}),
        ({}, {"lakestream.accept-rollback": "1"}),
        ({}, {"lakestream.anything": ""}),
    ],
)
def test_change_of_a_lakestream_property_is_rejected(before: dict[str, str], after: dict[str, str]) -> None:
    with pytest.raises(Rejected, match="cannot be set or removed through the catalog"):
        check_own_properties({"a": "b", **before}, {"a": "c", **after})


def test_other_properties_may_change() -> None:
    ours = {NEXT_OFFSETS: "{}", "lakestream.topic": "t"}
    check_own_properties({**ours, "a": "b", "c": "d"}, {**ours, "a": "c", "lake": "e"})


def test_lakestream_keys_in_summaries_are_rejected() -> None:
    old = {"snapshot-id": 1, "summary": {NEXT_OFFSETS: "{}"}}
    plain: list[Json] = [{"snapshot-id": 2, "summary": {"operation": "append"}}, {"snapshot-id": 3}]
    check_summaries({"snapshots": [old]}, {"snapshots": [old, *plain]})
    check_summaries(None, {"snapshots": plain})
    forged = {"snapshot-id": 4, "summary": {"operation": "append", NEXT_OFFSETS: "{}"}}
    for before in ({"snapshots": [old]}, None):
        with pytest.raises(Rejected, match=r"summary of snapshot 4 has lakestream\.next-offsets"):
            check_summaries(before, {"snapshots": [old, forged] if before else [forged]})


# Columns

KEY = {"id": 20, "name": "_key", "required": False, "type": {"type": "struct", "fields": []}}
Change = Callable[[list[Any]], None]


def table(*schemas: list[Json]) -> Json:
    listed = [{"schema-id": number, "type": "struct", "fields": fields} for number, fields in enumerate(schemas)]
    return {"schemas": listed, "current-schema-id": len(listed) - 1, "properties": {"lakestream.bound-columns": "16"}}


def columns() -> list[Json]:
    value, stream = copy.deepcopy(iceberg_schema()["fields"])
    return [value, {"id": 16, "name": "n", "required": False, "type": "int"}, KEY, stream]


def changed(change: Change) -> Json:
    fields = columns()
    after = copy.deepcopy(fields)
    change(after)
    return table(fields, after)


def stream(fields: list[Any]) -> list[Any]:
    found: list[Any] = fields[-1]["type"]["fields"]
    return found


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda fields: fields[-1].update(required=False), "column _stream was made optional"),
        (lambda fields: fields[-1].update(name="s"), "column _stream was renamed to s"),
        (lambda fields: fields.pop(), "column _stream was dropped"),
        (lambda fields: fields[-1].update(type="string"), "column _stream was changed from struct to string"),
        (lambda fields: stream(fields)[1].update(required=False), r"column _stream\.offset was made optional"),
        (lambda fields: stream(fields)[5].update(required=True), r"column _stream\.key was made required"),
        (
            lambda fields: stream(fields)[0].update(type="long"),
            r"column _stream\.partition was changed from int to long",
        ),
        (lambda fields: stream(fields)[5].update(name="k"), r"column _stream\.key was renamed to k"),
        (lambda fields: stream(fields).pop(3), r"column _stream\.timestamp_ms was dropped"),
        (
            lambda fields: stream(fields).append({"id": 99, "name": "x", "required": False, "type": "int"}),
            r"column _stream\.x was added",
        ),
        (
            lambda fields: stream(fields)[6]["type"].update({"element-required": False}),
            r"elements of column _stream\.headers were made optional",
        ),
        (
            lambda fields: stream(fields)[6]["type"]["element"]["fields"][0].update(name="k"),
            r"column _stream\.headers\.key was renamed to k",
        ),
        (
            lambda fields: stream(fields)[6]["type"].update(element="string"),
            r"elements of column _stream\.headers were changed from struct to string",
        ),
        (
            lambda fields: stream(fields)[6]["type"].update(element={"type": "list", "element": "int"}),
            r"elements of column _stream\.headers were changed from struct to \{'type': 'list'.*",
        ),
        (lambda fields: fields.pop(0), "column value was dropped"),
        (lambda fields: fields.pop(1), "column n, from which record values are restored, was dropped"),
        (lambda fields: fields[2].update(name="k"), "column _key was renamed to k"),
        (
            lambda fields: fields.append({"id": 99, "name": "_STREAM", "required": False, "type": "int"}),
            "column _STREAM was added",
        ),
    ],
)
def test_change_of_a_stream_column_is_rejected(change: Change, error: str) -> None:
    with pytest.raises(Rejected, match=f"{error}.*do not change it"):
        check_stream_columns_unchanged(table(columns()), changed(change))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda fields: fields.pop(0), "column value was dropped"),
        (lambda fields: fields[2].update(name="k"), "column _key was renamed to k"),
    ],
)
def test_dropped_column_is_rejected_when_its_schemas_are_removed_too(change: Change, error: str) -> None:
    after = changed(change)
    after["schemas"] = after["schemas"][1:]
    with pytest.raises(Rejected, match=error):
        check_stream_columns_unchanged(table(columns()), after)


def test_other_columns_may_change() -> None:
    def change(fields: list[Any]) -> None:
        fields[0].update(name="payload", doc="bytes")
        fields[1].update(name="number", type="long")
        fields[-1].update(doc="where it was")
        fields.insert(0, {"id": 99, "name": "more", "required": False, "type": "string"})

    check_stream_columns_unchanged(table(columns()), changed(change))


def test_existing_column_change_may_stay_or_be_reverted() -> None:
    loose = columns()
    loose[-1]["required"] = False
    more = [*copy.deepcopy(loose), {"id": 99, "name": "more", "required": False, "type": "string"}]
    check_stream_columns_unchanged(table(loose), table(loose, more))
    check_stream_columns_unchanged(table(loose), table(loose, columns()))
    worse = copy.deepcopy(loose)
    stream(worse)[1]["required"] = False
    with pytest.raises(Rejected, match=r"_stream\.offset was made optional"):
        check_stream_columns_unchanged(table(loose), table(loose, worse))


# Which snapshots are compared


def history(
    main: int | None, *line: tuple[int, int | None], log: tuple[int, ...] = (), ours: tuple[int, ...] = ()
) -> Json:
    snapshots = [
        {"snapshot-id": number, "parent-snapshot-id": parent, "summary": {NEXT_OFFSETS: "{}"} if number in ours else {}}
        for number, parent in line
    ]
    refs = {} if main is None else {"main": {"snapshot-id": main, "type": "branch"}}
    return {"snapshots": snapshots, "refs": refs, "snapshot-log": [{"snapshot-id": number} for number in log]}


def pair(before: Json, after: Json) -> tuple[int | None, int] | None:
    found = snapshots_to_check(before, after)
    if found is None:
        return None
    assert isinstance(found, SnapshotPair)
    return None if found.base is None else found.base["snapshot-id"], found.head["snapshot-id"]


LINE = ((1, None), (2, 1), (3, 2))


def test_new_snapshot_is_compared_with_the_former_main() -> None:
    before = history(1, (1, None), log=(1,), ours=(1,))
    assert pair(before, history(2, (1, None), (2, 1))) == (1, 2)
    assert pair(before, history(3, *LINE)) == (1, 3), "several in one commit"
    assert pair(history(None), history(3, *LINE)) == (None, 3), "the first snapshots"


def test_nothing_is_compared_when_main_is_at_a_known_snapshot() -> None:
    before = history(3, *LINE, log=(1, 2, 3))
    assert pair(before, before) is None
    assert pair(before, history(1, *LINE)) is None, "a rollback"
    assert pair(before, history(None, *LINE)) is None
    back = history(1, *LINE, log=(1, 2, 3, 1))
    assert pair(back, history(3, *LINE)) is None, "and forward again"
    assert pair(history(2, *LINE, log=(2,)), history(3, *LINE, ours=(3,))) is None, "a snapshot of the pipeline"


def test_staged_snapshot_is_compared_when_main_gets_it() -> None:
    """A snapshot inside of a commit was never read by consumers."""
    before = history(3, *LINE, log=(1, 3), ours=(1,))
    assert pair(before, history(2, *LINE)) == (1, 2)


def test_branch_is_compared_with_its_common_ancestor() -> None:
    line = (*LINE, (8, 2), (9, 8))
    before = history(3, *line, log=(1, 2, 3), ours=(1, 2, 3))
    assert pair(before, history(9, *line)) == (2, 9)


def test_branch_is_compared_with_main_when_its_ancestors_expired() -> None:
    before = history(3, (3, 2), log=(3,))
    assert pair(before, history(9, (3, 2), (8, 7), (9, 8))) == (3, 9)


# Rows


def file(first: int, last: int, *, rows: int | None = None, lacking: int = 0, partition: int = 0) -> DataFile:
    count = last - first + 1 if rows is None else rows
    return DataFile(f"file-{partition}-{first}.parquet", count, lacking, (partition, partition), (first, last))


def lacking(rows: int) -> DataFile:
    return DataFile("inserted.parquet", rows, rows, (-(2**63), 2**63 - 1), (2**63 - 1, -(2**63)))


def check(added: list[DataFile], removed: list[DataFile], deleted: int = 0) -> None:
    check_rows(added, removed, deleted, {0: 1_000, 1: 500})


@pytest.mark.parametrize(
    ("added", "removed", "deleted"),
    [
        ([], [], 0),
        ([], [file(0, 99)], 0),
        ([], [], 20),
        ([file(0, 99)], [file(0, 49), file(50, 99)], 0),  # merged
        ([file(0, 99, rows=100), file(3, 97, rows=50)], [file(0, 99), file(0, 99, rows=60)], 0),  # sorted
        ([file(0, 299, rows=200)], [file(0, 99), file(200, 299)], 0),  # sorted, around a file that stays
        ([file(10, 90, rows=70)], [file(0, 99)], 0),  # rows deleted, copy on write
        ([file(5, 7, rows=2)], [], 2),  # updated, merge on read
        ([file(5, 7, rows=2), file(0, 99, rows=98)], [file(0, 99)], 0),  # updated, copy on write
        ([file(0, 9, partition=1)], [file(0, 9, partition=1)], 0),
        ([lacking(5)], [lacking(5)], 0),  # existing rows, rewritten
        ([lacking(3), file(0, 9)], [lacking(5), file(0, 9)], 0),
        ([file(0, 9, rows=15, lacking=5)], [file(0, 9), lacking(5)], 0),
        ([file(0, 9), file(20, 29)], [file(0, 30), file(5, 8, rows=0)], 0),
        ([DataFile("both.parquet", 5, 0, (0, 1), (3, 12))], [file(0, 9), file(10, 19, partition=1)], 0),
        ([file(3, 12, rows=2)], [DataFile("both.parquet", 5, 0, (0, 1), (3, 12))], 0),
        ([DataFile("empty.parquet", 0, 0, (0, 0), (5_000, 0))], [], 0),
        ([file(0, 9)], [DataFile("unknown.parquet", 10, 0, (-(2**63), 2**63 - 1), (-(2**63), 2**63 - 1))], 0),
    ],
)
def test_rows_that_replace_removed_rows_are_accepted(
    added: list[DataFile], removed: list[DataFile], deleted: int
) -> None:
    check(added, removed, deleted)


@pytest.mark.parametrize(
    ("added", "removed", "deleted", "error"),
    [
        ([lacking(1)], [], 0, "inserted.parquet: 1 rows have no offset .*: produce them to the topic"),
        ([lacking(5)], [file(0, 99)], 0, "5 rows have no offset"),
        ([file(0, 9, rows=11, lacking=1)], [file(0, 9)], 0, "1 rows have no offset"),  # MERGE … NOT MATCHED
        ([lacking(6)], [lacking(5)], 0, "6 rows have no offset"),
        ([lacking(1)], [], 10, "1 rows have no offset"),
        ([file(0, 9)], [], 0, "row with offset 0 of partition 0, which no file that the commit removes has"),
        ([file(500, 509)], [file(0, 99)], 0, "row with offset 500 of partition 0"),
        ([file(0, 100)], [file(0, 99)], 0, "row with offset 100 of partition 0"),
        ([file(0, 20, rows=2)], [file(0, 9), file(30, 39)], 0, "row with offset 20 of partition 0"),
        ([DataFile("both.parquet", 2, 0, (1, 2), (3, 4))], [file(0, 9)], 0, "row with offset 3, which no file"),
        ([file(0, 9, partition=1)], [file(0, 9)], 0, "row with offset 0 of partition 1"),
        ([file(0, 99), file(0, 99)], [file(0, 99)], 0, "adds 200 rows with offsets and removes 100"),
        ([file(0, 99)], [], 50, "adds 100 rows with offsets and removes 50"),
        ([file(990, 1_000)], [file(900, 1_100)], 0, "rows up to offset 1000 of partition 0.*only those before 1000"),
        ([file(0, 9, partition=7)], [file(0, 9, partition=7)], 0, "only those before 0"),
        ([file(600, 600, partition=1)], [], 1, "only those before 500"),
        ([DataFile("x.parquet", -5, 0, (0, 0), (0, 4))], [], 0, "x.parquet: its manifest states -5 rows"),
        ([DataFile("x.parquet", 5, 6, (0, 0), (0, 4))], [], 0, "of which 6 have no offset: write the counts"),
        ([DataFile("x.parquet", 5, -1, (0, 0), (0, 4))], [file(0, 9)], 0, "x.parquet: neither its manifest nor"),
    ],
)
def test_new_or_duplicate_rows_are_rejected(
    added: list[DataFile], removed: list[DataFile], deleted: int, error: str
) -> None:
    with pytest.raises(Rejected, match=error):
        check(added, removed, deleted)


def test_rows_are_compared_with_removed_ones_when_next_offsets_are_unknown() -> None:
    check_rows([file(5_000, 5_009)], [file(5_000, 5_009)], 0, None)
