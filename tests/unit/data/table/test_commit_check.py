"""Checks of engines' commits to a topic's table, with manifests and footers as engines write them."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from tests.harness.table.history_tables import LOG, TOPIC_ID, Lake, many, rows_of
from tests.unit.data.table.test_history_rows_without_offsets import DEEP, drop_not_null, inserted, without_offsets

from lakestream.catalog import catalog
from lakestream.catalog.commit_checks import added_files
from lakestream.catalog.identifiers import TableName
from lakestream.catalog.manifests import avro_file
from lakestream.catalog.manifests.avro_codec import AvroSchema, writer
from lakestream.catalog.manifests.avro_schemas import entry_schema, partition_schema
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import (
    AddSchema,
    AddSnapshot,
    RemoveSnapshots,
    SetCurrentSchema,
    SetSnapshotRef,
    Update,
)
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS, main_of
from lakestream.data.table import commit_check
from lakestream.data.table.commit_check import CommitGuard
from lakestream.data.table.read import changed_files
from lakestream.data.table.read.changed_files import difference
from lakestream.data.table.read.manifest_index import FACTS, ListedFiles, Manifest, read_files
from lakestream.errors import Corrupt, Rejected, Unavailable
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.storage.object_store import ObjectStore


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    lake = await Lake(tmp_path).open()
    await drop_not_null(lake)
    await lake.move(many(0, 100))
    lake.check = guard = CommitGuard(lake.store, lake.catalog.locations)
    yield lake
    await guard.close()
    await lake.close()


async def live(lake: Lake) -> int | None:
    return main_of((await lake.table()).metadata)


async def counted(lake: Lake, rows: pa.Table) -> DataFile:
    """Writes a file with bounds and null counts."""
    file = await lake.foreign_file(rows)
    file[8] = {4: 0}
    return file


@pytest.mark.parametrize("how", DEEP)
@pytest.mark.parametrize("is_counted", [True, False])
async def test_rows_without_offsets_are_rejected(lake: Lake, how: str, is_counted: bool) -> None:
    before = await live(lake)
    file = await inserted(lake, without_offsets(rows_of(many(0, 5)), range(5), how), counted=is_counted)
    with pytest.raises(Rejected, match="5 rows have no offset"):
        await lake.replace([file], keep=True)
    assert await live(lake) == before


async def test_file_without_the_offset_column_is_rejected(lake: Lake) -> None:
    file = await inserted(lake, rows_of(many(0, 5)).drop_columns(["_stream"]), counted=False)
    with pytest.raises(Rejected, match="5 rows have no offset"):
        await lake.replace([file], keep=True)


@pytest.mark.parametrize("is_counted", [True, False])
async def test_rows_with_offsets_are_rejected_unless_they_replace_rows(lake: Lake, is_counted: bool) -> None:
    def again(rows: pa.Table) -> Any:
        return counted(lake, rows) if is_counted else lake.foreign_file(rows, bounds=False)

    with pytest.raises(Rejected, match="row with offset 10"):
        await lake.replace([await again(rows_of(many(10, 20)))], keep=True)
    with pytest.raises(Rejected, match="only those before 100"):
        await lake.replace([await again(rows_of(many(100, 110)))], keep=True)
    mixed = rows_of(many(0, 100)).take(pa.array([at * 37 % 100 for at in range(100)]))
    await lake.replace([await again(mixed[:50]), await again(mixed[50:])])
    await lake.replace([await again(rows_of(many(5, 90)))])
    with pytest.raises(Rejected, match="row with offset 0" if is_counted else "adds 90 rows with offsets"):
        await lake.replace([await again(rows_of(many(0, 90)))])
    assert await lake.read_all() == many(5, 90)


@pytest.mark.parametrize("content", [1, 2, 3, -1])
async def test_data_manifest_is_rejected_when_an_entry_has_other_content(lake: Lake, content: int) -> None:
    for file in (
        await counted(lake, rows_of(many(10, 20))),
        await inserted(lake, without_offsets(rows_of(many(0, 5)), range(5), DEEP[0])),
    ):
        file[0] = content
        with pytest.raises(Rejected, match=rf"has content {content} in .*, which has content 0 in its list"):
            await lake.replace([file], keep=True)


async def test_delete_manifest_is_rejected_when_an_entry_is_a_data_file(lake: Lake) -> None:
    with pytest.raises(Rejected, match=r"has content 0 in .*, which has content 1 in its list"):
        await lake.replace([], [await counted(lake, rows_of(many(10, 20)))], keep=True)


async def test_commit_is_rejected_when_it_lists_a_file_twice(lake: Lake) -> None:
    file = await counted(lake, rows_of(many(0, 100)))
    await lake.replace([file])
    with pytest.raises(Rejected, match="twice"):
        await lake.replace([file], keep=True)


async def test_merge_on_read_update_is_accepted_up_to_the_number_of_deleted_rows(lake: Lake) -> None:
    (old,) = (path for path in lake.root.rglob("*.parquet"))
    location = lake.catalog.locations.url_of(old.relative_to(lake.root).as_posix())
    places = pa.table({"file_path": [location] * 3, "pos": pa.array([5, 6, 7], pa.int64())})
    deletes = await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)
    with pytest.raises(Rejected, match="adds 4 rows with offsets and removes 3"):
        await lake.replace([await counted(lake, rows_of(many(5, 9)))], [deletes], keep=True)
    await lake.replace([await counted(lake, rows_of(many(5, 8)))], [deletes], keep=True)
    assert await lake.read_all() == many(0, 100)


async def test_file_is_rejected_when_manifest_and_footer_lack_statistics(lake: Lake) -> None:
    file = await lake.foreign_file(rows_of(many(0, 100)), bounds=False, write_statistics=False)
    with pytest.raises(Rejected, match="neither its manifest nor its footer states"):
        await lake.replace([file])


async def test_commit_is_rejected_when_consumers_could_not_read_its_files(lake: Lake) -> None:
    orc = await counted(lake, rows_of(many(0, 100)))
    orc[2] = FileFormat.ORC
    with pytest.raises(Rejected, match="is not a Parquet file"):
        await lake.replace([orc])
    equality = await lake.foreign_file(pa.table({"value": [b"x"]}), content=DataFileContent.EQUALITY_DELETES)
    with pytest.raises(Rejected, match="deletes rows by equality"):
        await lake.replace([], [equality], keep=True)
    places = pa.table({"file_path": ["x"], "pos": pa.array([5], pa.int64())})
    avro = await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)
    avro[2] = FileFormat.AVRO
    with pytest.raises(Rejected, match=r"neither a Parquet file of deleted positions .*write\.delete\.format\.default"):
        await lake.replace([], [avro], keep=True)


async def test_commit_is_rejected_when_its_metadata_is_missing_or_too_large(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = await lake.foreign_file(rows_of(many(0, 100)), bounds=False)
    monkeypatch.setattr(changed_files, "FOOTERS_MAX", 0)
    with pytest.raises(Rejected, match=r"1 files of the commit have no statistics of _stream\.offset"):
        await lake.replace([file])
    monkeypatch.undo()
    (lake.root / lake.key(file.file_path)).unlink()
    with pytest.raises(Rejected, match="the files of the commit cannot be read"):
        await lake.replace([file])
    monkeypatch.setattr(changed_files, "FILE_BYTES_MAX", 100)
    with pytest.raises(Rejected, match="write smaller manifests"):
        await lake.replace([await counted(lake, rows_of(many(0, 100)))])
    monkeypatch.undo()
    monkeypatch.setattr(changed_files, "BYTES_MAX", 1_000)
    with pytest.raises(Rejected, match="commit fewer changes per commit"):
        await lake.replace([await counted(lake, rows_of(many(0, 100)))])


@pytest.mark.parametrize("slow", [added_files, commit_check])
async def test_a_commit_is_unavailable_when_the_store_is_too_slow(
    lake: Lake, slow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def passed(*_: object) -> None:
        pass

    async def never(self: ObjectStore, key: str) -> None:
        await asyncio.sleep(100)

    file = await counted(lake, rows_of(many(0, 100)))
    monkeypatch.setattr(slow, "CHECK_S_MAX", 0.05)
    monkeypatch.setattr(type(lake.store), "head", never)
    if slow is commit_check:  # the check before it reads the same manifests
        monkeypatch.setattr(catalog, "check_added_files", passed)
    with pytest.raises(Unavailable, match="could not be checked"):
        await lake.replace([file])


async def test_branch_is_checked_when_main_is_set_to_it(lake: Lake) -> None:
    """Consumers do not read it before that."""
    bad = await inserted(lake, without_offsets(rows_of(many(0, 5)), range(5), DEEP[0]))
    await lake.replace([bad], keep=True, branch="audit")
    await lake.replace([await counted(lake, rows_of(many(10, 100)))], branch="good")
    refs = (await lake.table()).metadata["refs"]

    async def forward(branch: str) -> None:
        main = SetSnapshotRef("main", "branch", refs[branch]["snapshot-id"])
        await lake.catalog.commit(LOG.topic_id, [], [main], lake.check)

    with pytest.raises(Rejected, match="5 rows have no offset"):
        await forward("audit")
    await forward("good")
    assert await lake.read_all() == many(10, 100)


async def test_branch_is_checked_although_an_earlier_commit_moved_main_to_it_and_back(lake: Lake) -> None:
    await lake.replace([await counted(lake, rows_of(many(10, 20)))], keep=True, branch="audit")
    metadata = (await lake.table()).metadata
    to_audit, back = (
        SetSnapshotRef("main", "branch", metadata["refs"][name]["snapshot-id"]) for name in ("audit", "main")
    )
    await lake.catalog.commit(LOG.topic_id, [], [to_audit, back], lake.check)
    with pytest.raises(Rejected, match="adds a row with offset 10"):
        await lake.catalog.commit(LOG.topic_id, [], [to_audit], lake.check)
    assert await live(lake) == metadata["refs"]["main"]["snapshot-id"]
    assert await lake.read_all() == many(0, 100)


async def test_commit_is_rejected_when_it_drops_a_stream_column(lake: Lake) -> None:
    before = (await lake.table()).metadata
    fields = copy.deepcopy(schema_of(before)["fields"])
    del fields[-1]["type"]["fields"][3]
    updates: list[Update] = [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]
    with pytest.raises(Rejected, match=r"_stream\.timestamp_ms was dropped.*do not change it"):
        await lake.catalog.commit(LOG.topic_id, [], updates, lake.check)
    assert (await lake.table()).metadata == before


async def test_a_snapshot_does_not_replace_another_with_its_id(lake: Lake) -> None:
    bad = await inserted(lake, without_offsets(rows_of(many(0, 5)), range(5), DEEP[0]))
    await lake.replace([bad], keep=True, branch="audit")
    metadata = (await lake.table()).metadata
    main, audit = metadata["current-snapshot-id"], metadata["snapshots"][-1]
    forged = {
        **audit,
        "snapshot-id": main,
        "sequence-number": metadata["last-sequence-number"] + 1,
        "summary": {"operation": "append", NEXT_OFFSETS: '{"0":1000}'},
    }
    forged.pop("parent-snapshot-id")
    updates: list[Update] = [RemoveSnapshots([main]), AddSnapshot(forged), SetSnapshotRef("main", "branch", main)]
    with pytest.raises(Rejected, match=f"snapshot {main} .*: give the new one another id"):
        await lake.catalog.commit(LOG.topic_id, [], updates, lake.check)
    assert (await lake.table()).metadata == metadata


# Register


async def registered(lake: Lake) -> None:
    """Drops the table, and registers its newest metadata file as a client does."""
    assert lake.check is not None
    location = (await lake.table()).metadata_location
    topics, claims = Topics(lake.server.client()), Claims(lake.server.client())
    if await topics.find_id(TOPIC_ID) is None:
        await topics.create("orders", Topic(TOPIC_ID, 1))
        await claims.advance_table_end(LOG, 200)
    await lake.catalog.drop(TOPIC_ID)
    await lake.catalog.register(TableName(("default",), "orders"), location, check=lake.check)


async def unchecked(lake: Lake, file: DataFile, *deletes: DataFile) -> None:
    check, lake.check = lake.check, None
    await lake.replace([file], deletes, keep=True)
    lake.check = check


async def test_register_succeeds_when_all_rows_are_valid(lake: Lake) -> None:
    await lake.move(many(100, 120))
    await registered(lake)
    assert await lake.read_all() == many(0, 120)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("twice", "1 other files have 110 rows for the 100 offsets"),
        ("beyond", "rows up to offset 109 of partition 0, but the pipeline has moved only those before 100"),
        ("null", "5 rows have no offset"),
        ("outside", "a table may name only files under its own location"),
    ],
)
async def test_register_is_rejected_when_rows_are_invalid(lake: Lake, bad: str, reason: str) -> None:
    if bad == "null":
        file = await inserted(lake, without_offsets(rows_of(many(0, 5)), range(5), DEEP[0]))
    else:
        file = await counted(lake, rows_of(many(100, 110) if bad == "beyond" else many(10, 20)))
    if bad == "outside":
        file[1] = lake.catalog.locations.url_of("tables/other/x.parquet")
    await unchecked(lake, file)
    with pytest.raises(Rejected, match=reason):
        await registered(lake)


async def test_register_succeeds_when_rows_were_updated_with_merge_on_read(lake: Lake) -> None:
    (old,) = (path for path in lake.root.rglob("*.parquet"))
    location = lake.catalog.locations.url_of(old.relative_to(lake.root).as_posix())
    places = pa.table({"file_path": [location] * 3, "pos": pa.array([5, 6, 7], pa.int64())})
    deletes = await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)
    await lake.replace([await counted(lake, rows_of(many(5, 8)))], [deletes], keep=True)
    await registered(lake)
    assert await lake.read_all() == many(0, 100)


async def test_register_is_rejected_when_a_stream_column_has_another_type(lake: Lake) -> None:
    fields = copy.deepcopy(schema_of((await lake.table()).metadata)["fields"])
    fields[-1]["type"]["fields"][0]["type"] = "long"
    updates: list[Update] = [AddSchema({"type": "struct", "fields": fields}), SetCurrentSchema(-1)]
    await lake.catalog.commit(LOG.topic_id, [], updates)
    with pytest.raises(Rejected, match=r"_stream\.partition was changed from int to long"):
        await registered(lake)


# Manifests


def files(names: str) -> ListedFiles:
    facts = np.zeros((len(FACTS), len(names)), np.int64)
    return ListedFiles(list(names), [None] * len(names), np.ones(len(names), np.bool_), facts)


@pytest.mark.parametrize(
    ("before", "after", "added", "removed"),
    [
        ("", "", "", ""),
        ("ab", "ab", "", ""),
        ("ab", "abc", "c", ""),
        ("ab", "b", "", "a"),
        ("ab", "cd", "cd", "ab"),
        ("a", "aa", "a", ""),
        ("aab", "ab", "", "a"),
    ],
)
def test_the_difference_of_two_snapshots(before: str, after: str, added: str, removed: str) -> None:
    found = difference(files(before), files(after))
    assert ("".join(found.added.locations), "".join(found.removed.locations)) == (added, removed)


def test_manifest_is_read_when_its_schema_has_types_as_objects() -> None:
    """`{"type": "bytes"}` is the same as `"bytes"`."""
    schema = entry_schema(partition_schema([]))
    entry = {
        0: 1,
        2: {
            134: 0,
            100: "file:///x.parquet",
            101: "parquet",
            102: {},
            103: 7,
            104: 1_000,
            110: {4: 2},
            125: {3: bytes(4), 4: (5).to_bytes(8, "little")},
            128: {3: bytes(4), 4: (9).to_bytes(8, "little")},
        },
    }
    out = bytearray()
    writer(schema)(out, entry)
    body = avro_file.write_file(_wrapped(schema), {}, [bytes(out)])
    found = read_files(body, Manifest("m.avro", len(body), 0, 1, 0, 0))
    assert found.locations == ["file:///x.parquet"]
    facts = {name: getattr(found, name).tolist() for name in ("rows", "offset_lo", "offset_hi", "offsets_null")}
    assert facts == {"rows": [7], "offset_lo": [5], "offset_hi": [9], "offsets_null": [2]}


def _doubling(levels: int) -> Any:
    """Returns a schema in which each record has two fields of the previous record's type."""
    schema: Any = "long"
    for level in range(levels):
        again = f"R{level - 1}" if level else "long"
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": again}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"type": "fixed", "name": "f", "size": -(2**40)}, "a fixed type has -1099511627776 bytes"),
        ({"type": "array", "items": "null"}, "the items of an array take no bytes"),
        (_doubling(20), "its schema has more than 20000 parts"),
    ],
)
def test_manifest_is_corrupt_when_its_schema_exceeds_the_file_or_memory(kind: Any, message: str) -> None:
    body = avro_file.write_file({"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}, {}, [b"\0\0"])
    with pytest.raises(Corrupt, match=f"m.avro is damaged: {message}"):
        read_files(body, Manifest("m.avro", len(body), 0, 1, 0, 0))


def _wrapped(schema: AvroSchema) -> AvroSchema:
    if isinstance(schema, str):
        return {"type": schema} if schema != "null" else schema
    if isinstance(schema, list):
        return [_wrapped(branch) for branch in schema]
    found: Mapping[str, Any] = json.loads(json.dumps(schema))
    if found["type"] == "record":
        return {**found, "fields": [{**field, "type": _wrapped(field["type"])} for field in found["fields"]]}
    return {**found, "items": _wrapped(found["items"])} if found["type"] == "array" else found
