"""Manifests and lists: pyiceberg reads what we write and we what it writes, damage is told, and they stay few."""

import struct
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, NestedField
from tests.unit.catalog.topic import files_of, manifests_of, moved, offsets_in, topic_table

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.append import append
from lakestream.catalog.avro_file import opened, written
from lakestream.catalog.avro_types import reader, skipper, write_bytes, write_long, writer
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import ManifestFile, read_entries, read_list, write_list
from lakestream.catalog.merging import ENTRIES_MAX, FAN_IN, FULL, to_merge
from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Corrupt
from lakestream.metadata.memory import MemoryServer
from lakestream.storage.file import FileStore

LONG = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    objects = FileStore(tmp_path, SystemClock(), RandomIds())
    store = MemoryServer(SystemClock()).client()
    yield Catalog(store, objects, Locations(f"file://{tmp_path}"), SystemClock(), RandomIds())
    await objects.close()


async def grown(catalog: Catalog, commits: int, partitions: int = 3) -> LoadedTable:
    loaded = await topic_table(catalog)
    for number in range(commits):
        ranges = moved(*((partition, number * 2, number * 2 + 2) for partition in range(partitions)))
        loaded = await append(catalog, loaded, files_of(loaded, ranges), ranges)
    return loaded


# Against pyiceberg


async def test_pyiceberg_reads_what_we_write(catalog: Catalog) -> None:
    loaded = await grown(catalog, 2 * FAN_IN + 3)
    table = StaticTable.from_metadata(loaded.metadata_location)
    planned = list(table.scan().plan_files())
    assert len(planned) == (2 * FAN_IN + 3) * 3
    one = table.scan(row_filter="_stream.partition = 1 and _stream.offset = 9").plan_files()
    (task,) = one
    wanted = files_of(loaded, moved((1, 8, 10)))[0]
    assert task.file.file_path == wanted.location
    assert task.file.lower_bounds == wanted.lower_bounds
    assert task.file.upper_bounds == wanted.upper_bounds
    assert task.file.column_sizes == wanted.column_sizes
    assert task.file.split_offsets == list(wanted.split_offsets)
    assert (task.file.record_count, task.file.file_size_in_bytes, task.file.partition[0]) == (2, 1002, 1)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["total-data-files"] == str(len(planned))
    entries = [entry for one in snapshot.manifests(table.io) for entry in one.fetch_manifest_entry(table.io)]
    by_snapshot = {one.snapshot_id: one.sequence_number for one in table.metadata.snapshots}
    assert {(entry.snapshot_id, entry.sequence_number) for entry in entries} == set(by_snapshot.items())


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "null"])
def test_we_read_what_pyiceberg_writes(tmp_path: Path, codec: Any) -> None:
    io, path = PyArrowFileIO(), str(tmp_path / "m.avro")
    schema = Schema(NestedField(3, "p", IntegerType(), required=True))
    spec = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "p"))
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="s3://x/y.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(-7),
        record_count=3,
        file_size_in_bytes=2**40,
        column_sizes={1: 5, 300: 2**40},
        value_counts={},
        null_value_counts=None,
        lower_bounds={3: b"\xf9\xff\xff\xff"},
        upper_bounds={3: b""},
        split_offsets=[4, 2**33],
        sort_order_id=None,
    )
    with write_manifest(2, spec, schema, io.new_output(path), 2**62, codec) as made:
        made.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=2**62, data_file=file))
    (entry,) = read_entries(Path(path).read_bytes(), path)
    assert entry[f.SNAPSHOT_ID] == 2**62
    found = entry[f.DATA_FILE]
    assert found[f.FILE_PATH] == "s3://x/y.parquet"
    assert found[f.PARTITION] == {1000: -7}
    assert found[f.COLUMN_SIZES] == {1: 5, 300: 2**40}
    assert found[f.VALUE_COUNTS] == {}
    assert found[f.NULL_COUNTS] is None
    assert found[f.UPPER_BOUNDS] == {3: b""}
    assert found[f.SPLIT_OFFSETS] == [4, 2**33]
    listed = str(tmp_path / "l.avro")
    with write_manifest_list(2, io.new_output(listed), 2**62, 5, 9, codec) as lists:
        lists.add_manifests([made.to_manifest_file()])
    (manifest,) = read_list(Path(listed).read_bytes(), listed)
    assert (manifest.manifest_path, manifest.sequence_number, manifest.added_rows_count) == (path, 9, 3)
    assert manifest.partitions == [{509: False, 518: False, 510: b"\xf9\xff\xff\xff", 511: b"\xf9\xff\xff\xff"}]
    again = write_list([manifest], {"snapshot-id": 1, "sequence-number": 10}, 2)
    assert read_list(again, "again") == [manifest]


def test_snappy_as_java_writes_it() -> None:
    record = bytearray()
    writer("long")(record, 7)
    packed = bytes(cramjam.snappy.compress_raw(bytes(record)))
    body = bytearray(b"Obj\x01\x04")
    for text in (b"avro.schema", b'"long"', b"avro.codec", b"snappy"):
        write_bytes(body, text)
    body += b"\0" + b"S" * 16
    write_long(body, 1)
    write_bytes(body, packed + b"CRC!")
    body += b"S" * 16
    assert list(opened(bytes(body), "x").records()) == [7]
    with pytest.raises(Corrupt, match="lzma"):
        opened(bytes(body).replace(b"\x0csnappy", b"\x08lzma"), "x")


# Damage


async def test_any_cut_of_a_list_is_told(catalog: Catalog) -> None:
    loaded = await grown(catalog, 3)
    location = loaded.metadata["snapshots"][-1]["manifest-list"]
    body = bytes(await catalog.objects.get(catalog.locations.key_of(location)))
    whole = read_list(body, location)
    start = body.rindex(body[-16:], 0, len(body) - 16) + 16
    for end in [*range(0, start, 37), *range(start + 1, len(body))]:
        with pytest.raises(Corrupt, match=r"snap-.* is damaged"):
            read_list(body[:end], location)
    for at in range(start, len(body)):
        flipped = bytearray(body)
        flipped[at] ^= 0x55
        try:
            assert len(read_list(bytes(flipped), location)) <= len(whole)
        except Corrupt as error:
            assert location in str(error)  # noqa: PT017


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_from_anywhere_end(data: bytes) -> None:
    schema = f.entry_schema(f.partition_schema([{"name": "p", "field-id": 1000}]))
    body = written(schema, {}, [data, data])
    try:
        list(read_entries(body, "x"))
    except Corrupt as error:
        assert "x is damaged" in str(error)  # noqa: PT017


def test_a_count_that_lies_is_not_believed() -> None:
    lying = bytearray()
    write_long(lying, 2**60)
    for schema in ({"type": "array", "items": "null"}, {"type": "array", "items": "long"}, "bytes"):
        for read in (reader(schema), skipper(schema)):
            with pytest.raises(Corrupt, match="are announced"):
                read(bytes(lying), 0)


# Avro itself


@given(LONG)
def test_numbers(number: int) -> None:
    out = bytearray()
    write_long(out, number)
    assert reader("long")(bytes(out), 0) == (number, len(out))
    assert skipper("long")(bytes(out), 0) == len(out)


@given(
    st.fixed_dictionaries(
        {
            1: st.one_of(st.none(), st.text()),
            2: st.binary(),
            3: st.dictionaries(st.integers(0, 2**31 - 1), LONG),
            4: st.one_of(st.none(), st.lists(st.booleans())),
            5: st.fixed_dictionaries({6: LONG}),
        }
    )
)
def test_records(record: dict[int, Any]) -> None:
    pair = {"type": "record", "name": "p", "fields": [{"name": n, "type": "long"} for n in ("key", "value")]}
    schema = {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "field-id": 1, "type": ["null", "string"]},
            {"name": "b", "field-id": 2, "type": "bytes"},
            {"name": "c", "field-id": 3, "type": {"type": "array", "items": pair}},
            {"name": "d", "field-id": 4, "type": ["null", {"type": "array", "items": "boolean"}]},
            {"name": "e", "field-id": 5, "type": {"type": "record", "name": "s", "fields": [
                {"name": "g", "field-id": 6, "type": "long"}]}},
        ],
    }  # fmt: skip
    out = bytearray()
    writer(schema)(out, record)
    assert reader(schema)(bytes(out), 0) == (record, len(out))
    assert skipper(schema)(bytes(out), 0) == len(out)
    assert [*opened(written(schema, {"k": "v"}, [bytes(out)] * 2), "x").records()] == [record, record]


def test_types_of_others() -> None:
    for schema, data, value in (
        ("float", struct.pack("<f", 1.5), 1.5),
        ("double", struct.pack("<d", -2.5), -2.5),
        ({"type": "fixed", "size": 2, "name": "x"}, b"ab", b"ab"),
        ({"type": "map", "values": "int"}, b"\x02\x02a\x0e\x00", {"a": 7}),
        ({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x00", [1, 2]),  # a block with its size
        ({"type": "long", "logicalType": "timestamp-micros"}, b"\x02", 1),
    ):
        assert reader(schema)(data, 0) == (value, len(data))
        assert skipper(schema)(data, 0) == len(data)
    with pytest.raises(Corrupt, match="not known"):
        reader("nothing")


# Merging


async def test_manifests_stay_few(catalog: Catalog) -> None:
    most = 0
    loaded = await topic_table(catalog)
    for number in range(150):
        ranges = moved((0, number, number + 1), (1, number, number + 1))
        loaded = await append(catalog, loaded, files_of(loaded, ranges), ranges)
        if number % 15 == 14:
            most = max(most, len(await manifests_of(catalog, loaded.metadata)))
    assert most <= 2 * FAN_IN
    assert await offsets_in(catalog, loaded.metadata) == Counter(
        {(partition, offset): 1 for partition in range(2) for offset in range(150)}
    )
    merged = [one for one in await manifests_of(catalog, loaded.metadata) if one.existing_files_count]
    assert {(one.min_sequence_number - 1) % FAN_IN for one in merged} == {0}
    assert all(one.partitions and one.partitions[0][f.UPPER_BOUND] == b"\1\0\0\0" for one in merged)


async def test_a_manifest_that_cannot_be_read_is_left_alone(catalog: Catalog) -> None:
    loaded = await grown(catalog, FAN_IN)
    broken = (await manifests_of(catalog, loaded.metadata))[3]
    await catalog.objects.put(catalog.locations.key_of(broken.manifest_path), [b"Obj\x01 no more"])
    ranges = moved((0, FAN_IN * 2, FAN_IN * 2 + 1))
    after = await append(catalog, loaded, files_of(loaded, ranges), ranges)
    assert len(await manifests_of(catalog, after.metadata)) == FAN_IN + 1, "the commit goes on without merging"


def test_what_is_merged_is_bounded() -> None:
    def manifest(number: int, count: int, **more: Any) -> ManifestFile:
        partitions = [{f.LOWER_BOUND: b"\0" * 4, f.UPPER_BOUND: b"\0" * 4}]
        made: dict[str, Any] = {
            "manifest_path": f"s3://x/{number}-stream.avro",
            "manifest_length": 1,
            "partition_spec_id": 0,
            "sequence_number": number,
            "min_sequence_number": number,
            "added_snapshot_id": number,
            "added_files_count": count,
            "added_rows_count": count,
            "partitions": partitions,
        } | more
        return ManifestFile(**made)

    large = [manifest(number, FULL - 1) for number in range(FAN_IN)]
    chosen = to_merge(large, 2)
    assert chosen
    assert sum(one.live_files_count for one in chosen) <= ENTRIES_MAX
    assert to_merge([manifest(number, FULL) for number in range(40)], 2) == []
    assert to_merge([manifest(number, 1) for number in range(FAN_IN - 1)], 2) == []
    small = [manifest(number, 1) for number in reversed(range(FAN_IN + 5))]
    assert [one.sequence_number for one in to_merge(small, 2)] == list(range(FAN_IN + 5)), "the oldest first"
    mixed = [manifest(number, 1, partition_spec_id=number % 2) for number in range(2 * FAN_IN)]
    assert {one.partition_spec_id for one in to_merge(mixed, 2)} == {0}, "one manifest is of one spec"
    for foreign in ({"manifest_path": "s3://x/other.avro"}, {"content": 1}, {"key_metadata": b"?"}):
        assert to_merge([manifest(number, 1, **foreign) for number in range(40)], 2) == []
    assert to_merge(small, 3) == [], "its rows have ids"
