"""Manifests and manifest lists: compatibility with pyiceberg, damaged files, merging."""

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
from tests.harness.catalog.topic_tables import files_of, manifests_of, moved, offsets_in, topic_table

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import avro_codec, avro_file
from lakestream.catalog.manifests import avro_schemas as f
from lakestream.catalog.manifests.avro_codec import reader, skipper, write_bytes, write_long, writer
from lakestream.catalog.manifests.avro_file import read_file, write_file
from lakestream.catalog.manifests.manifest import ManifestFile, read_entries, read_list, write_list
from lakestream.catalog.manifests.merge import ENTRIES_MAX, FAN_IN, FULL, manifests_to_merge
from lakestream.catalog.operations.append import append
from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Corrupt
from lakestream.metadata.memory import MemoryServer
from lakestream.storage.local_store import FileStore

LONG = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture
async def catalog(tmp_path: Path) -> AsyncIterator[Catalog]:
    objects = FileStore(tmp_path, SystemClock(), RandomIds())
    store = MemoryServer(SystemClock()).client()
    yield Catalog(store, objects, Locations(f"file://{tmp_path}"), SystemClock(), RandomIds())
    await objects.close()


async def table_after(catalog: Catalog, commits: int, partitions: int = 3) -> LoadedTable:
    loaded = await topic_table(catalog)
    for number in range(commits):
        ranges = moved(*((partition, number * 2, number * 2 + 2) for partition in range(partitions)))
        loaded = await append(catalog, loaded, files_of(loaded, ranges), ranges)
    return loaded


# Compatibility with pyiceberg


async def test_pyiceberg_reads_our_manifests(catalog: Catalog) -> None:
    loaded = await table_after(catalog, 2 * FAN_IN + 3)
    table = StaticTable.from_metadata(loaded.metadata_location)
    planned = list(table.scan().plan_files())
    assert len(planned) == (2 * FAN_IN + 3) * 3
    one = table.scan(row_filter="_stream.partition = 1 and _stream.offset = 9").plan_files()
    (task,) = one
    expected = files_of(loaded, moved((1, 8, 10)))[0]
    assert task.file.file_path == expected.location
    assert task.file.lower_bounds == expected.lower_bounds
    assert task.file.upper_bounds == expected.upper_bounds
    assert task.file.column_sizes == expected.column_sizes
    assert task.file.split_offsets == list(expected.split_offsets)
    assert (task.file.record_count, task.file.file_size_in_bytes, task.file.partition[0]) == (2, 1002, 1)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["total-data-files"] == str(len(planned))
    entries = [entry for one in snapshot.manifests(table.io) for entry in one.fetch_manifest_entry(table.io)]
    by_snapshot = {one.snapshot_id: one.sequence_number for one in table.metadata.snapshots}
    assert {(entry.snapshot_id, entry.sequence_number) for entry in entries} == set(by_snapshot.items())


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "null"])
def test_manifests_of_pyiceberg_are_read(tmp_path: Path, codec: Any) -> None:
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


def test_snappy_manifest_of_java_is_read() -> None:
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
    assert list(read_file(bytes(body), "x").records()) == [7]
    with pytest.raises(Corrupt, match="lzma"):
        read_file(bytes(body).replace(b"\x0csnappy", b"\x08lzma"), "x")


# Damaged files


async def test_truncated_manifest_list_is_corrupt(catalog: Catalog) -> None:
    loaded = await table_after(catalog, 3)
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
def test_random_bytes_are_read_or_corrupt(data: bytes) -> None:
    schema = f.entry_schema(f.partition_schema([{"name": "p", "field-id": 1000}]))
    body = write_file(schema, {}, [data, data])
    try:
        list(read_entries(body, "x"))
    except Corrupt as error:
        assert "x is damaged" in str(error)  # noqa: PT017


def test_wrong_counts_are_corrupt() -> None:
    lying = bytearray()
    write_long(lying, 2**60)
    for schema in ({"type": "array", "items": "boolean"}, {"type": "array", "items": "long"}, "bytes"):
        for read in (reader(schema), skipper(schema)):
            with pytest.raises(Corrupt, match=r"where \d+ (bytes )?are left"):
                read(bytes(lying), 0)


# Avro itself


@given(LONG)
def test_longs_round_trip(number: int) -> None:
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
def test_records_round_trip(record: dict[int, Any]) -> None:
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
    assert [*read_file(write_file(schema, {"k": "v"}, [bytes(out)] * 2), "x").records()] == [record, record]


def test_types_of_other_writers_are_read() -> None:
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
    with pytest.raises(Corrupt, match="unknown Avro type"):
        reader("nothing")


# Merging


async def test_small_manifests_are_merged(catalog: Catalog) -> None:
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


async def test_manifest_is_not_merged_when_it_is_damaged(catalog: Catalog) -> None:
    loaded = await table_after(catalog, FAN_IN)
    broken = (await manifests_of(catalog, loaded.metadata))[3]
    await catalog.objects.put(catalog.locations.key_of(broken.manifest_path), [b"Obj\x01 no more"])
    ranges = moved((0, FAN_IN * 2, FAN_IN * 2 + 1))
    after = await append(catalog, loaded, files_of(loaded, ranges), ranges)
    assert len(await manifests_of(catalog, after.metadata)) == FAN_IN + 1, "the commit succeeds without merging"


def test_number_of_merged_entries_is_bounded() -> None:
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
    chosen = manifests_to_merge(large, 2)
    assert chosen
    assert sum(one.live_files_count for one in chosen) <= ENTRIES_MAX
    assert manifests_to_merge([manifest(number, FULL) for number in range(40)], 2) == []
    assert manifests_to_merge([manifest(number, 1) for number in range(FAN_IN - 1)], 2) == []
    small = [manifest(number, 1) for number in reversed(range(FAN_IN + 5))]
    assert [one.sequence_number for one in manifests_to_merge(small, 2)] == list(range(FAN_IN + 5)), "the oldest first"
    mixed = [manifest(number, 1, partition_spec_id=number % 2) for number in range(2 * FAN_IN)]
    assert {one.partition_spec_id for one in manifests_to_merge(mixed, 2)} == {0}, "a manifest has one spec"
    for foreign in ({"manifest_path": "s3://x/other.avro"}, {"content": 1}, {"key_metadata": b"?"}):
        assert manifests_to_merge([manifest(number, 1, **foreign) for number in range(40)], 2) == []
    assert manifests_to_merge(small, 3) == [], "its rows have ids"


def test_list_of_format_version_1_gets_default_sequence_numbers(tmp_path: Path) -> None:
    """An engine wrote it before the table was upgraded."""
    io, schema = PyArrowFileIO(), Schema(NestedField(1, "id", IntegerType()))
    place = f"file://{tmp_path}/m.avro"
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{tmp_path}/f.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=1,
    )
    with write_manifest(1, PartitionSpec(), schema, io.new_output(place), 7, "deflate") as manifest:
        manifest.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=7, data_file=file))
    location = f"file://{tmp_path}/snap.avro"
    with write_manifest_list(1, io.new_output(location), 7, None, None, "deflate") as listed:
        listed.add_manifests([manifest.to_manifest_file()])
    (found,) = read_list((tmp_path / "snap.avro").read_bytes(), location)
    assert (found.manifest_path, found.sequence_number, found.min_sequence_number, found.content) == (place, 0, 0, 0)


def _list_with(name: str, kind: Any, value: Any) -> bytes:
    """Returns a list of one manifest, with another type and value in this field."""
    schema = f.list_schema(3)
    plain: dict[str, Any] = {"string": "m.avro", "int": 1, "long": 1}
    values = {field["field-id"]: plain.get(str(field["type"])) for field in schema["fields"]}
    fields = [{**field, "type": kind} if field["name"] == name else field for field in schema["fields"]]
    (number,) = (field["field-id"] for field in fields if field["name"] == name)
    out = bytearray()
    writer({**schema, "fields": fields})(out, values | {number: value})
    return write_file({**schema, "fields": fields}, {}, [bytes(out)])


@pytest.mark.parametrize(("kind", "value"), [("string", "1"), ("bytes", b"1"), ("long", 2**63)])
@pytest.mark.parametrize(
    "name",
    [field["name"] for field in f.MANIFEST_FILE_FIELDS if field["type"] in ("int", "long")] + ["first_row_id"],
)
def test_a_list_is_damaged_when_a_number_has_another_type_or_too_many_bits(name: str, kind: str, value: Any) -> None:
    with pytest.raises(Corrupt, match=rf"snap.avro is damaged: Expected `int.*{name}"):
        read_list(_list_with(name, kind, value), "snap.avro")


@pytest.mark.parametrize("name", [field["name"] for field in f.MANIFEST_FILE_FIELDS if field["type"] == "int"])
def test_a_list_is_damaged_when_an_int_has_more_than_32_bits(name: str) -> None:
    with pytest.raises(Corrupt, match=rf"Expected `int` <= 2147483647.*{name}"):
        read_list(_list_with(name, "long", 2**31), "snap.avro")


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("manifest_path", "long", 1),
        ("partitions", "string", "all"),
        ("partitions", {"type": "array", "items": "string", "element-id": 508}, ["all"]),
        ("key_metadata", "long", 1),
    ],
)
def test_a_list_is_damaged_when_a_path_or_a_bound_has_another_type(name: str, kind: Any, value: Any) -> None:
    with pytest.raises(Corrupt, match=f"Expected .* got .*{name}"):
        read_list(_list_with(name, kind, value), "snap.avro")


def test_a_list_is_damaged_when_a_bound_of_a_partition_is_not_bytes() -> None:
    bounds = {"name": "b", "type": "record", "fields": [{"name": "x", "type": "string", "field-id": f.LOWER_BOUND}]}
    kind = {"type": "array", "items": bounds, "element-id": 508}
    with pytest.raises(Corrupt, match=f"field {f.LOWER_BOUND} in partitions of m.avro has the value 'low'"):
        read_list(_list_with("partitions", kind, [{f.LOWER_BOUND: "low"}]), "snap.avro")


def _with_field(kind: Any) -> Any:
    return {"type": "record", "name": "r", "fields": [{"name": "x", "type": kind}]}


def _array(items: Any) -> Any:
    return _with_field({"type": "array", "items": items})


@pytest.mark.parametrize("items", ["null", {"type": "fixed", "name": "f", "size": 0}, _with_field("null")])
def test_array_items_of_no_bytes_are_corrupt(items: Any) -> None:
    """A few bytes could encode any number of them."""
    body = avro_file.write_file(_array(items), {}, [b"\x02\0\0"])
    for read in (read_list, lambda body, location: list(read_entries(body, location))):
        with pytest.raises(Corrupt, match="x is damaged: the items of an array take no bytes"):
            read(body, "x")


def test_files_of_too_many_items_or_records_are_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_codec, "ITEMS_MAX", 3)
    items = b"\x04ab\x04cd\0"
    with pytest.raises(Corrupt, match="x is damaged: an array has more than 3 items"):
        list(read_entries(avro_file.write_file(_array("boolean"), {}, [items]), "x"))
    monkeypatch.setattr(avro_file, "RECORDS_MAX", 3)
    with pytest.raises(Corrupt, match="x is damaged: it has more than 3 entries"):
        read_list(avro_file.write_file(_with_field("long"), {}, [b"\0"] * 4), "x")


def _entries(null_fields: int, count: int) -> bytes:
    """Returns a manifest whose entries have fields that take no bytes."""
    fields = [{"name": f"n{number}", "type": "null", "field-id": 10_000 + number} for number in range(null_fields)]
    path = {"name": "file_path", "type": "string", "field-id": f.FILE_PATH}
    data_file = {"type": "record", "name": "d", "fields": [path, *fields]}
    entry = {"type": "record", "name": "e", "fields": [{"name": "f", "type": data_file, "field-id": f.DATA_FILE}]}
    return avro_file.write_file(entry, {}, [b"\x02a"] * count)


def test_a_manifest_of_many_null_fields_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="x is damaged: the schema of its records has more than 20000 parts"):
        list(read_entries(_entries(7_000, 1), "x"))
    assert len(list(read_entries(_entries(2_000, 10), "x"))) == 10


def test_values_of_no_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_codec, "FILE_VALUES_MAX", 10_000)
    assert len(list(read_entries(_entries(998, 10), "x"))) == 10
    with pytest.raises(Corrupt, match="x is damaged: its records have more than 10000 values"):
        list(read_entries(_entries(999, 10), "x"))


def test_items_of_all_arrays_of_a_record_are_counted_together() -> None:
    """Each array is below the maximum; its items are one byte in the file."""
    fields = [{"name": f"a{number}", "type": {"type": "array", "items": "boolean"}} for number in range(3)]
    out = bytearray()
    for _ in fields:
        write_long(out, 400_000)
        out += bytes(400_001)
    body = avro_file.write_file({"type": "record", "name": "r", "fields": fields}, {}, [bytes(out)])
    with pytest.raises(Corrupt, match="x is damaged: a record has more than 1000000 values"):
        list(read_entries(body, "x"))


def _header(entries: list[tuple[bytes, bytes]]) -> bytes:
    out = bytearray(b"Obj\x01")
    write_long(out, len(entries))
    for name, text in entries:
        write_bytes(out, name)
        write_bytes(out, text)
    return bytes(out) + bytes(17)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ([(b"avro.schema", b"[" + b"[]," * 400_000 + b"[]]")], "has 1200004 bytes, more than 1048576"),
        ([(b"avro.schema", b"[" + b"[]," * 100_000 + b"[]]")], "has more than 20000 parts"),
        ([(b"a", b"")] * 1_001, "a record has more than 1000 values"),
    ],
)
def test_a_header_is_corrupt_when_it_is_too_large(header: list[tuple[bytes, bytes]], problem: str) -> None:
    with pytest.raises(Corrupt, match=f"x is damaged: .*{problem}"):
        read_file(_header(header), "x")


@pytest.mark.parametrize("schema", ["null", "string", _with_field("long"), {"type": "record", "fields": [1]}, 7])
def test_records_that_are_not_entries_are_corrupt(schema: Any) -> None:
    body = avro_file.write_file(schema, {}, [b"\x02x"])
    for read in (read_list, lambda body, location: list(read_entries(body, location))):
        with pytest.raises(Corrupt, match="x is damaged"):
            read(body, "x")
