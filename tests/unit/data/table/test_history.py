"""Reads of history by brokers: offsets and timestamps to batches, for files of any writer."""

import asyncio
import copy
import random
import struct
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFileContent
from pyroaring import BitMap
from tests.harness.table.history_tables import LOG, NOW_MS, Lake, many, rows_of
from tests.harness.table.reference_codec import LONG_MAX, Record, read_batch

from lakestream.aio.threads import Threads
from lakestream.catalog.pointers import TableEntry
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, AddSpec, SetCurrentSchema, SetDefaultSpec
from lakestream.data.table.history import TableHistory
from lakestream.data.table.read import history_reader
from lakestream.data.table.read import position_deletes as deletes
from lakestream.data.table.read.snapshots import AGE_MS_MAX
from lakestream.errors import Corrupt, Unavailable
from lakestream.model import Buffer, PartitionId, Span
from lakestream.records.file_region import as_bytes


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    lake = await Lake(tmp_path).open()
    yield lake
    await lake.close()


async def test_moved_records_are_read_back(lake: Lake) -> None:
    odd = [
        Record(2, -1, 0, None, None),
        Record(3, LONG_MAX, 0, b"", b"", ((b"h", None), (b"h", b""), (b"\xff", b"raw"))),
        Record(9, 1_700_000_000_000, 1, b"k" * 300, b"x" * 5000),
    ]
    await lake.move(odd)
    await lake.move(many(10, 500))
    assert await lake.read_all() == odd + many(10, 500)


@pytest.mark.parametrize("bytes_max", [1, 10_000, 1 << 20])
async def test_read_can_start_at_any_offset(lake: Lake, bytes_max: int) -> None:
    records = [record for record in many(0, 3000, 100) if record.offset % 7]
    for start in range(0, 3000, 1000):
        await lake.move(records_in(records, start, start + 1000), start + 1000, group_bytes_max=20_000)
    for offset in (0, 1, 7, 14, 999, 1000, 1001, 1500, 2989, 2995, 2998):
        past = await lake.history.read(LOG, offset, bytes_max)
        assert past.batches[0][0] <= next(record.offset for record in records if record.offset >= offset)
        assert await lake.read_all(offset=offset, bytes_max=bytes_max) == records_in(records, offset, 3000)


def records_in(records: list[Record], start: int, end: int) -> list[Record]:
    return [record for record in records if start <= record.offset < end]


async def test_a_gap_at_the_end_has_no_batches(lake: Lake) -> None:
    await lake.move(many(0, 10), 20)
    assert await lake.history.read(LOG, 10, 1 << 20) == ([], 20)
    await lake.move([], 30)
    assert await lake.history.read(LOG, 20, 1 << 20) == ([], 30)
    assert await lake.history.read(LOG, 12, 1 << 20) == ([], 30)


async def test_read_returns_only_records_of_its_partition(lake: Lake) -> None:
    other = PartitionId(LOG.topic_id, 3)
    await lake.move(many(0, 10))
    await lake.move(many(0, 20), partition=3)
    assert await lake.read_all() == many(0, 10)
    assert await lake.read_all(other) == many(0, 20)
    assert (await lake.history.start(other), await lake.history.start(PartitionId(LOG.topic_id, 4))) == (0, None)


async def test_newer_snapshot_is_loaded_when_the_cached_one_ends_below_the_offset(lake: Lake) -> None:
    await lake.move(many(0, 10))
    assert await lake.read_all() == many(0, 10)
    await lake.move(many(10, 20))
    assert (await lake.history.read(LOG, 10, 1 << 20)).offset_next == 20


async def test_first_offset_by_timestamp(lake: Lake) -> None:
    for start in range(0, 100, 20):
        await lake.move(many(start, start + 20), group_bytes_max=400)
    late = Record(105, NOW_MS - 5, 0, None, b"late")
    far = Record(106, LONG_MAX, 0, None, b"far")
    await lake.move([late, far])
    assert await lake.history.first_at(LOG, 0, NOW_MS + 45) == (NOW_MS + 45, 45)
    assert await lake.history.first_at(LOG, 50, NOW_MS + 45) == (NOW_MS + 50, 50)
    assert await lake.history.first_at(LOG, 0, NOW_MS - 5) == (NOW_MS, 0)
    assert await lake.history.first_at(LOG, 0, NOW_MS + 1000) == (LONG_MAX, 106)
    assert await lake.history.newest(LOG, 0) == (LONG_MAX, 106)


async def test_newest_timestamp_from_an_offset_on(lake: Lake) -> None:
    await lake.move([Record(at, NOW_MS - at, 0, None, b"v") for at in range(50)], group_bytes_max=400)
    assert await lake.history.newest(LOG, 0) == (NOW_MS, 0)
    assert await lake.history.newest(LOG, 30) == (NOW_MS - 30, 30)
    assert await lake.history.first_at(LOG, 10, NOW_MS - 5) is None


# Changes by engines


def shuffled(table: pa.Table, seed: int = 1) -> pa.Table:
    places = list(range(len(table)))
    random.Random(seed).shuffle(places)
    return table.take(pa.array(places))


async def seen(lake: Lake) -> None:
    """Makes all cached snapshots too old."""
    for entry in (await lake.history._loaded())._snapshots._tables.values():
        entry.refreshed_s -= AGE_MS_MAX


@pytest.mark.parametrize("bytes_together", [1 << 30, 2_000])
async def test_files_with_another_sort_order_are_read_by_offset(
    lake: Lake, bytes_together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and every row group may have any offset."""
    monkeypatch.setattr(history_reader, "CHUNK_BYTES", bytes_together)
    monkeypatch.setattr(history_reader, "WHOLE_BYTES_MAX", bytes_together)
    await lake.move(many(0, 1000))
    assert await lake.read_all() == many(0, 1000)
    mixed = shuffled(rows_of(many(0, 1000)))
    await lake.replace([await lake.foreign_file(mixed[at : at + 200], row_group_size=50) for at in range(0, 1000, 200)])
    await lake.move(many(1000, 1100))
    assert await lake.read_all() == many(0, 1100)
    assert (await lake.history.read(LOG, 500, 100)).batches[0][0] <= 500
    assert await lake.history.first_at(LOG, 0, NOW_MS + 700) == (NOW_MS + 700, 700)
    assert await lake.history.newest(LOG, 0) == (NOW_MS + 1099, 1099)


async def test_files_without_bounds_in_manifests_are_read(lake: Lake) -> None:
    await lake.move(many(0, 300))
    mixed = rows_of(many(0, 300))
    files = [
        await lake.foreign_file(mixed[at : at + 100], bounds=False, write_statistics=False) for at in (0, 100, 200)
    ]
    await lake.replace(files)
    assert await lake.read_all() == many(0, 300)
    assert await lake.history.start(LOG) == 0
    assert await lake.history.first_at(LOG, 0, NOW_MS + 200) == (NOW_MS + 200, 200)


async def test_a_file_of_several_partitions(lake: Lake) -> None:
    """Users may change the partition spec."""
    await lake.move(many(0, 30))
    await lake.move(many(0, 40), partition=1)
    both = shuffled(pa.concat_tables([rows_of(many(0, 30)), rows_of(many(0, 40), 1)]))
    spec = {"spec-id": 1, "fields": []}
    await lake.catalog.commit(LOG.topic_id, [], [AddSpec(spec), SetDefaultSpec(-1)])
    await lake.replace([await lake.foreign_file(both, partition=None)])
    assert await lake.read_all() == many(0, 30)
    assert await lake.read_all(PartitionId(LOG.topic_id, 1)) == many(0, 40)


async def test_file_of_another_partition_beyond_the_end_is_skipped(lake: Lake) -> None:
    """Neither manifest nor partition spec has its partition, only its rows."""
    await lake.move(many(0, 1), 3)
    await lake.move(many(0, 40), partition=1)
    await lake.catalog.commit(LOG.topic_id, [], [AddSpec({"spec-id": 1, "fields": []}), SetDefaultSpec(-1)])
    rows = [rows_of(many(0, 1)), rows_of(many(5, 40), 1)]
    await lake.replace([await lake.foreign_file(one, partition=None) for one in rows])
    assert await lake.history.read(LOG, 1, 1 << 20) == ([], 3)


async def test_deleted_rows_are_gaps_once_the_snapshot_is_refreshed(lake: Lake) -> None:
    await lake.move(many(0, 100))
    assert await lake.read_all() == many(0, 100)
    left = [record for record in many(0, 100) if record.offset % 3]
    await lake.replace([await lake.foreign_file(rows_of(left))])
    await seen(lake)
    assert await lake.read_all() == left
    assert await lake.history.start(LOG) == 1


def positions(file: str, *places: int) -> pa.Table:
    return pa.table({"file_path": [file] * len(places), "pos": pa.array(places, pa.int64())})


async def test_position_deletes_are_gaps(lake: Lake) -> None:
    (one,), (two,) = await lake.move(many(0, 100), group_bytes_max=500), await lake.move(many(100, 200))
    about = pa.concat_tables([positions(one.location, 0, 7, 99), positions(two.location, 50)])
    deletes = await lake.foreign_file(about, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    await lake.move(many(200, 300))  # as many rows, none of them deleted
    gone = {0, 7, 99, 150}
    assert await lake.read_all() == [record for record in many(0, 300) if record.offset not in gone]
    assert await lake.history.first_at(LOG, 0, NOW_MS + 7) == (NOW_MS + 8, 8)
    await lake.replace([], [await lake.foreign_file(positions(one.location, 8), content=deletes.content)], keep=True)
    await seen(lake)
    assert [record.offset for record in await lake.read_all(offset=5)][:3] == [5, 6, 9]


async def test_a_file_whose_rows_are_all_deleted_is_a_gap(lake: Lake) -> None:
    (one,), _ = await lake.move(many(0, 10)), await lake.move(many(10, 20))
    about = positions(one.location, *range(10))
    await lake.replace([], [await lake.foreign_file(about, content=DataFileContent.POSITION_DELETES)], keep=True)
    assert (await lake.history.read(LOG, 3, 1 << 20)).batches[0][0] == 10
    assert await lake.read_all() == many(10, 20)


def vector(*places: int) -> bytes:
    maps: dict[int, BitMap] = {}
    for place in places:
        maps.setdefault(place >> 32, BitMap()).add(place & 0xFFFFFFFF)
    return framed_vector(maps)


def framed_vector(maps: Mapping[int, BitMap]) -> bytes:
    body = b"\xd1\xd3\x39\x64" + struct.pack("<Q", len(maps))
    for high, bits in sorted(maps.items()):
        body += struct.pack("<I", high) + bits.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def test_deletion_vector_is_read() -> None:
    places = [0, 5, 70_000, 2**32 + 3, 2**33]
    assert deletes.read_vector(vector(*places), "x").tolist() == places
    for at in range(len(vector(5))):
        damaged = bytearray(vector(5))
        damaged[at] ^= 1
        with pytest.raises(Corrupt, match="x is damaged"):
            deletes.read_vector(bytes(damaged), "x")


def positions_file(places: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    pq.write_table(places, out)
    return bytes(out.getvalue())


def test_deleted_positions_are_read_by_file() -> None:
    places = pa.table({"file_path": ["b", "a", "b", "c", "a"], "pos": pa.array([7, 2, 1, 0, 2], pa.int64())})
    found = deletes.read_positions(positions_file(places), "x")
    assert {path: some.tolist() for path, some in found.items()} == {"a": [2], "b": [1, 7], "c": [0]}
    assert deletes.read_positions(positions_file(places[:0]), "x") == {}
    with pytest.raises(Corrupt, match="x is damaged"):
        deletes.read_positions(positions_file(places.drop_columns(["file_path"])), "x")


def test_deletes_of_too_many_rows_are_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a few bytes in the file, but would take all memory."""
    full = BitMap()
    full.add_range(0, 2**32 - 1)
    full.run_optimize()
    with pytest.raises(Corrupt, match="x deletes 4294967295 rows, more than 20000000: rewrite the table's files"):
        deletes.read_vector(framed_vector({0: full}), "x")
    monkeypatch.setattr(deletes, "POSITIONS_MAX", 2)
    places = pa.table({"file_path": ["a"] * 3, "pos": pa.array([0, 1, 2], pa.int64())})
    with pytest.raises(Corrupt, match="x deletes 3 rows, more than 2"):
        deletes.read_positions(positions_file(places), "x")


async def test_error_names_the_equality_delete_file(lake: Lake) -> None:
    await lake.move(many(0, 10))
    file = await lake.foreign_file(rows_of(many(5, 6)), content=DataFileContent.EQUALITY_DELETES)
    await lake.replace([], [file], keep=True)
    with pytest.raises(Corrupt, match=r"foreign-\d+.parquet deletes rows by equality"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_columns_are_read_by_field_id(lake: Lake) -> None:
    """Another order, other names, more columns, as engines write them after ALTER TABLE."""
    records = [*many(0, 3), Record(3, LONG_MAX, 0, None, None, ((b"a", b"b"), (b"\xfe", None)))]
    await lake.move(records)
    plain = rows_of(records)
    stream = plain.column("_stream").combine_chunks()
    names = {"key": "the_key", "offset": "position", "headers": "tags"}
    fields = [field.with_name(names.get(field.name, field.name)) for field in stream.type][::-1]
    columns = [stream.field(field) for field in range(stream.type.num_fields)][::-1]
    fields.insert(2, pa.field("more", pa.string(), metadata={"PARQUET:field_id": "40"}))
    columns.insert(2, pa.array(["x"] * len(plain)))
    other = pa.StructArray.from_arrays(columns, fields=fields)
    value = plain.schema.field("value").with_name("payload")
    meta = plain.schema.field("_stream").with_type(other.type).with_name("meta")
    extra = pa.field("extra", pa.int32(), metadata={"PARQUET:field_id": "41"})
    table = pa.table(
        [pa.array(range(len(plain)), pa.int32()), other, plain.column("value")], schema=pa.schema([extra, meta, value])
    )
    file = await lake.foreign_file(table, bounds=False)
    await lake.replace([file])
    assert await lake.read_all() == records


def without_ids(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([without_ids(inner) for inner in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(without_ids(kind.value_field))
    return pa.field(field.name, kind, field.nullable)


async def test_columns_are_read_by_name_when_a_file_has_no_field_ids(lake: Lake) -> None:
    await lake.move(many(0, 50))
    numbered = rows_of(many(0, 50))
    bare = numbered.cast(pa.schema([without_ids(field) for field in numbered.schema]))
    await lake.replace([await lake.foreign_file(bare)])
    assert await lake.read_all() == many(0, 50)


# Errors


async def test_newer_snapshot_is_read_when_files_were_removed_by_expiration(lake: Lake) -> None:
    (old,) = await lake.move(many(0, 100))
    await lake.history.start(LOG)  # caches the snapshot, not the file
    await lake.replace([await lake.foreign_file(rows_of(many(0, 100)))])
    await lake.store.delete([lake.key(old.location)])
    assert await lake.read_all() == many(0, 100)


async def test_error_names_the_missing_file(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 100))
    await lake.store.delete([lake.key(file.location)])
    with pytest.raises(Corrupt, match=rf"table default.orders lists a file .*{lake.key(file.location)}"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_any_damage_in_a_file_is_detected(lake: Lake) -> None:
    """Also damage that decodes: pages have checksums, and the footer must agree with the manifest."""
    (file,) = await lake.move(many(0, 30))
    assert await damaged(lake, lake.key(file.location), 13) > 50


async def damaged(lake: Lake, key: str, step: int) -> int:
    """Changes one byte at a time. Reads must be right, or fail with the file's name. Returns the number of errors."""
    body = bytes(await lake.store.get(key))
    found: list[str] = []
    for at in range(0, len(body), step):
        await lake.store.put(key, [body[:at], bytes([body[at] ^ 0x55]), body[at + 1 :]])
        await lake.history.close()
        lake.history = TableHistory(lake.catalog, lake.store, 1 << 20)
        try:
            assert await lake.read_all() == many(0, 30), at
        except Corrupt as error:
            found.append(str(error))
    await lake.store.put(key, [body])
    # The damage may be in the name of the next file: then another part of the name is unchanged.
    assert [
        error for error in found if "tables/" not in error and ".avro" not in error and ".parquet" not in error
    ] == []
    return len(found)


async def test_file_is_read_again_after_its_repair(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing cached of it may prevent that: a whole small file, a footer, the contents of manifests."""
    monkeypatch.setattr(history_reader, "RELOAD_S", 0.02)
    records = many(0, 30) + many(30, 2000, 400)
    (small,) = await lake.move(records[:30])
    (large,) = await lake.move(records[30:], group_bytes_max=200_000)
    lists = [info.key async for page in lake.store.walk("tables") for info in page if info.key.endswith(".avro")]
    for key in (lake.key(small.location), lake.key(large.location), *lists):
        body = bytes(await lake.store.get(key))
        errors = 0
        for at in (60, len(body) // 2, len(body) - 60, len(body) - 6):
            await lake.history.close()
            lake.history = TableHistory(lake.catalog, lake.store, 64 << 20)
            await lake.store.put(key, [body[:at], bytes([body[at] ^ 0x55]), body[at + 1 :]])
            try:
                await lake.read_all()
            except Corrupt:
                errors += 1
            await lake.store.put(key, [body])
            await asyncio.sleep(0.03)
            assert await lake.read_all() == records, (key, at)
        assert errors > 1 or "snap-" in key, key


async def test_damaged_file_is_not_loaded_by_every_read(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 30))
    body = bytes(await lake.store.get(lake.key(file.location)))
    await lake.store.put(lake.key(file.location), [body[:60], bytes([body[60] ^ 0x55]), body[61:]])
    reads = noted_reads(lake)
    for _ in range(20):
        with pytest.raises(Corrupt, match="restore"):
            await lake.history.read(LOG, 0, 1 << 20)
    assert len(reads) <= 2


@pytest.mark.parametrize("size", [0, 3, 8, 100])
async def test_error_names_the_truncated_file(lake: Lake, size: int) -> None:
    (file,) = await lake.move(many(0, 30))
    body = bytes(await lake.store.get(lake.key(file.location)))
    await lake.store.put(lake.key(file.location), [body[:size]])
    with pytest.raises(Corrupt, match=lake.key(file.location)):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_error_names_the_damaged_manifest(lake: Lake) -> None:
    """Manifests have no checksum but that of deflate's blocks: damage that cannot be detected is not tested."""
    await lake.move(many(0, 30))
    keys = [info.key async for page in lake.store.walk("tables") for info in page if info.key.endswith(".avro")]
    assert len(keys) == 2
    for key in keys:
        assert await damaged(lake, key, 37) > 10


async def served(lake: Lake, bytes_max: int) -> list[tuple[int, bytes | None]]:
    return [(one.offset, one.value) for one in await lake.read_all(bytes_max=bytes_max)]


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
async def test_row_of_the_first_file_is_read_when_two_files_have_an_offset(lake: Lake, bytes_max: int) -> None:
    await lake.move(many(0, 60))
    await lake.move(many(60, 100))
    records = many(0, 100)
    other = [one._replace(value=b"other") for one in records[40:80]]
    again = await lake.foreign_file(rows_of(other), row_group_size=7)
    await lake.replace([again], keep=True)
    expected = [(one.offset, b"other" if 60 <= one.offset < 80 else one.value) for one in records]
    assert await served(lake, bytes_max) == expected
    reader = TableHistory(lake.catalog, lake.store, 1 << 26)
    for offset in (55, 65, 75):
        past = await reader.read(LOG, offset, bytes_max)
        found = {one.offset: one.value for _, pieces in past.batches for one in read_batch(as_bytes(pieces))}
        assert found[offset] == dict(expected)[offset]
    await reader.close()


async def test_first_row_is_read_when_a_file_has_an_offset_twice(lake: Lake) -> None:
    """As after UPDATE … SET _stream.offset: row count and bounds of the file are unchanged."""
    await lake.move(many(0, 20))
    records = many(0, 20)
    updated = [*records[:6], records[7]._replace(offset=5), records[6], *records[8:]]
    rows = pa.concat_tables([rows_of([one]) for one in updated])
    await lake.replace([await lake.foreign_file(rows)])
    await lake.move(many(20, 30))
    assert await lake.read_all() == [*records[:7], *records[8:], *many(20, 30)]


async def test_error_names_the_dropped_column(lake: Lake) -> None:
    await lake.move(many(0, 10))
    table = await lake.table()
    fields = copy.deepcopy(schema_of(table.metadata)["fields"])
    stream = next(field["type"] for field in fields if field["name"] == "_stream")
    stream["fields"] = [field for field in stream["fields"] if field["name"] != "headers"]
    await lake.catalog.commit(
        LOG.topic_id, [], [AddSchema({"type": "struct", "schema-id": 1, "fields": fields}), SetCurrentSchema(-1)]
    )
    with pytest.raises(Corrupt, match=r"table default\.orders: column _stream.headers was dropped"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_read_fails_when_the_table_was_dropped(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.catalog.drop(LOG.topic_id)
    with pytest.raises(Corrupt, match="was dropped"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_read_fails_when_the_table_ends_below_the_trimmed_log(lake: Lake) -> None:
    await lake.move(many(0, 10))
    with pytest.raises(Corrupt, match="up to offset 10 only, but offset 10 was moved from the log"):
        await lake.history.read(LOG, 10, 1 << 20)


async def test_read_is_confirmed_before_records_are_reported_missing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed leader of the metadata store returns an old table: a confirmed read precedes any error."""
    pointers = lake.catalog.pointers
    await lake.move(many(0, 10))
    real, old = pointers.find_id, await pointers.find_id(LOG.topic_id)
    await lake.move(many(10, 20))

    async def deposed(table_id: str, *, confirmed: bool = False) -> TableEntry:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(pointers, "find_id", deposed)
    assert (await lake.history.read(LOG, 15, 1 << 20)).offset_next == 20


async def test_read_fails_as_unavailable_when_the_store_does_not_respond(lake: Lake) -> None:
    await lake.move(many(0, 10))

    async def nothing(key: str, spans: object) -> list[bytes]:
        raise Unavailable("no answer")

    lake.store.get_ranges, works = nothing, lake.store.get_ranges  # type: ignore[assignment,method-assign]
    with pytest.raises(Unavailable, match="no answer"):
        await lake.history.read(LOG, 0, 1 << 20)
    lake.store.get_ranges = works  # type: ignore[method-assign]
    assert await lake.read_all() == many(0, 10)


# Concurrency


async def test_concurrent_reads_of_a_chunk_share_one_load(lake: Lake) -> None:
    await lake.move(many(0, 2000, 200), group_bytes_max=1 << 20)
    reads = noted_reads(lake)
    found = await asyncio.gather(*(lake.history.read(LOG, offset, 1000) for offset in range(0, 2000, 20)))
    assert all(past.batches for past in found)
    assert len(reads) <= 2  # the footer, and the rows


def noted_reads(lake: Lake) -> list[str]:
    """Returns a list of all reads of data files from now on."""
    reads: list[str] = []
    works = lake.store.get_ranges

    async def noted(key: str, spans: Sequence[Span]) -> list[Buffer]:
        reads.append(key)
        return await works(key, spans)

    lake.store.get_ranges = noted  # type: ignore[method-assign]
    return reads


async def test_next_chunk_is_cached_during_a_sequential_read(lake: Lake) -> None:
    await lake.move(many(0, 2000, 200), group_bytes_max=50_000)
    first = await lake.history.read(LOG, 0, 10_000)
    assert (await lake.history._loaded())._ahead == set()
    second = await lake.history.read(LOG, first.offset_next, 10_000)
    (ahead,) = (await lake.history._loaded())._ahead
    await ahead
    assert second.batches


async def test_stop_iteration_in_a_thread_raises_runtime_error() -> None:
    """asyncio cannot propagate a StopIteration."""
    threads = Threads()
    with pytest.raises(RuntimeError, match="ended too early"):
        await asyncio.wait_for(threads(lambda: next(iter(()))), 5)
    await threads.close()


@pytest.mark.parametrize("part", ["data", "deletes"])
async def test_read_fails_when_a_file_is_outside_of_the_table_location(lake: Lake, part: str) -> None:
    """Older versions accepted commits with files of other tables: their rows would be read as this topic's."""
    await lake.move(many(0, 10))
    own = await lake.table()
    elsewhere = f"{own.metadata['location']}-other/data"
    if part == "data":
        await lake.replace([await lake.foreign_file(rows_of(many(0, 10)), folder=elsewhere)])
    else:
        positions = pa.table({"file_path": ["x"], "pos": pa.array([0], pa.int64())})
        kind = DataFileContent.POSITION_DELETES
        deleted = await lake.foreign_file(positions, content=kind, folder=elsewhere)
        await lake.replace([], [deleted], keep=True)
    with pytest.raises(Corrupt, match="a table may name only files under its own location"):
        await lake.read_all()


async def test_cached_file_of_another_table_is_not_read(lake: Lake) -> None:
    """The caches are keyed by path and shared by all tables."""
    (file,) = await lake.move(many(0, 10))
    assert await lake.read_all() == many(0, 10)
    reader = await lake.history._loaded()
    table = await reader._snapshots.newest(LOG.topic_id)
    other = table._replace(folder=lake.catalog.locations.table(f"{table.folder.location}-other"))
    files = (await reader._planner.files(table, 0)).files
    with pytest.raises(Corrupt, match="it is not under"):
        await reader._planner.files(other, 0)
    with pytest.raises(Corrupt, match="it is not under"):
        await reader._planner.footer(other.folder, files, 0)
    with pytest.raises(Corrupt, match="it is not under"):
        await reader._planner.fetch(other.folder, file.location, [Span(0, 4)])
