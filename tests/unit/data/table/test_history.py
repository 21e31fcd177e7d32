"""History as brokers read it: offsets and times to batches, whoever wrote the table's files and however."""

import asyncio
import copy
import random
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFileContent
from pyroaring import BitMap
from tests.unit.data.table.lakes import LOG, NOW_MS, Lake, many, rows_of
from tests.unit.data.table.plain import LONG_MAX, Record

from lakestream.catalog.pointers import Found
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.updates import AddSchema, AddSpec, SetCurrentSchema, SetDefaultSpec
from lakestream.data.table import deletes, replay
from lakestream.data.table.history import TableHistory
from lakestream.data.table.snapshots import LOOK_MS
from lakestream.data.table.threads import Threads
from lakestream.errors import Corrupt, Unavailable
from lakestream.model import Buffer, PartitionId, Span


@pytest_asyncio.fixture
async def lake(tmp_path: Path) -> AsyncIterator[Lake]:
    lake = await Lake(tmp_path).open()
    yield lake
    await lake.close()


async def test_what_was_moved_is_read_back(lake: Lake) -> None:
    odd = [
        Record(2, -1, 0, None, None),
        Record(3, LONG_MAX, 0, b"", b"", ((b"h", None), (b"h", b""), (b"\xff", b"raw"))),
        Record(9, 1_700_000_000_000, 1, b"k" * 300, b"x" * 5000),
    ]
    await lake.move(odd)
    await lake.move(many(10, 500))
    assert await lake.read_all() == odd + many(10, 500)


@pytest.mark.parametrize("bytes_max", [1, 10_000, 1 << 20])
async def test_any_offset_can_be_asked_for(lake: Lake, bytes_max: int) -> None:
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


async def test_partitions_are_apart(lake: Lake) -> None:
    other = PartitionId(LOG.topic_id, 3)
    await lake.move(many(0, 10))
    await lake.move(many(0, 20), partition=3)
    assert await lake.read_all() == many(0, 10)
    assert await lake.read_all(other) == many(0, 20)
    assert (await lake.history.start(other), await lake.history.start(PartitionId(LOG.topic_id, 4))) == (0, None)


async def test_a_newer_snapshot_is_loaded_for_what_the_old_one_does_not_have(lake: Lake) -> None:
    await lake.move(many(0, 10))
    assert await lake.read_all() == many(0, 10)
    await lake.move(many(10, 20))
    assert (await lake.history.read(LOG, 10, 1 << 20)).offset_next == 20


async def test_times(lake: Lake) -> None:
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


async def test_the_newest_of_what_is_left(lake: Lake) -> None:
    await lake.move([Record(at, NOW_MS - at, 0, None, b"v") for at in range(50)], group_bytes_max=400)
    assert await lake.history.newest(LOG, 0) == (NOW_MS, 0)
    assert await lake.history.newest(LOG, 30) == (NOW_MS - 30, 30)
    assert await lake.history.first_at(LOG, 10, NOW_MS - 5) is None


# What others have done to the table


def shuffled(table: pa.Table, seed: int = 1) -> pa.Table:
    places = list(range(len(table)))
    random.Random(seed).shuffle(places)
    return table.take(pa.array(places))


async def seen(lake: Lake) -> None:
    """As if the time had passed after which a table is looked at again."""
    for known in (await lake.history._loaded())._snapshots._known.values():
        known.looked_s -= LOOK_MS


@pytest.mark.parametrize("bytes_together", [1 << 30, 2_000])
async def test_files_sorted_by_something_else(lake: Lake, bytes_together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, and every row group, may hold any offset."""
    monkeypatch.setattr(replay, "CHUNK_BYTES", bytes_together)
    monkeypatch.setattr(replay, "WHOLE_BYTES_MAX", bytes_together)
    await lake.move(many(0, 1000))
    assert await lake.read_all() == many(0, 1000)
    mixed = shuffled(rows_of(many(0, 1000)))
    await lake.replace([await lake.foreign_file(mixed[at : at + 200], row_group_size=50) for at in range(0, 1000, 200)])
    await lake.move(many(1000, 1100))
    assert await lake.read_all() == many(0, 1100)
    assert (await lake.history.read(LOG, 500, 100)).batches[0][0] <= 500
    assert await lake.history.first_at(LOG, 0, NOW_MS + 700) == (NOW_MS + 700, 700)
    assert await lake.history.newest(LOG, 0) == (NOW_MS + 1099, 1099)


async def test_files_whose_bounds_nobody_knows(lake: Lake) -> None:
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
    """The partition spec is the user's to change."""
    await lake.move(many(0, 30))
    await lake.move(many(0, 40), partition=1)
    both = shuffled(pa.concat_tables([rows_of(many(0, 30)), rows_of(many(0, 40), 1)]))
    spec = {"spec-id": 1, "fields": []}
    await lake.catalog.commit(LOG.topic_id, [], [AddSpec(spec), SetDefaultSpec(-1)])
    await lake.replace([await lake.foreign_file(both, partition=None)])
    assert await lake.read_all() == many(0, 30)
    assert await lake.read_all(PartitionId(LOG.topic_id, 1)) == many(0, 40)


async def test_a_file_of_another_partition_that_begins_behind_the_end(lake: Lake) -> None:
    """Nothing says whose it is but its rows."""
    await lake.move(many(0, 1), 3)
    await lake.move(many(0, 40), partition=1)
    await lake.catalog.commit(LOG.topic_id, [], [AddSpec({"spec-id": 1, "fields": []}), SetDefaultSpec(-1)])
    rows = [rows_of(many(0, 1)), rows_of(many(5, 40), 1)]
    await lake.replace([await lake.foreign_file(one, partition=None) for one in rows])
    assert await lake.history.read(LOG, 1, 1 << 20) == ([], 3)


async def test_deleted_rows_are_gaps_as_soon_as_the_delete_is_seen(lake: Lake) -> None:
    await lake.move(many(0, 100))
    assert await lake.read_all() == many(0, 100)
    left = [record for record in many(0, 100) if record.offset % 3]
    await lake.replace([await lake.foreign_file(rows_of(left))])
    await seen(lake)
    assert await lake.read_all() == left
    assert await lake.history.start(LOG) == 1


def positions(file: str, *places: int) -> pa.Table:
    return pa.table({"file_path": [file] * len(places), "pos": pa.array(places, pa.int64())})


async def test_deletes_by_position(lake: Lake) -> None:
    (one,), (two,) = await lake.move(many(0, 100), group_bytes_max=500), await lake.move(many(100, 200))
    about = pa.concat_tables([positions(one.location, 0, 7, 99), positions(two.location, 50)])
    deletes = await lake.foreign_file(about, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    await lake.move(many(200, 300))  # as many rows, and none of them is meant
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
    body = b"\xd1\xd3\x39\x64" + struct.pack("<Q", len(maps))
    for high, bits in sorted(maps.items()):
        body += struct.pack("<I", high) + bits.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def test_a_deletion_vector() -> None:
    places = [0, 5, 70_000, 2**32 + 3, 2**33]
    assert deletes.read_vector(vector(*places), "x").tolist() == places
    for at in range(len(vector(5))):
        damaged = bytearray(vector(5))
        damaged[at] ^= 1
        with pytest.raises(Corrupt, match="x is damaged"):
            deletes.read_vector(bytes(damaged), "x")


async def test_deletes_by_equality_are_refused_by_name(lake: Lake) -> None:
    await lake.move(many(0, 10))
    file = await lake.foreign_file(rows_of(many(5, 6)), content=DataFileContent.EQUALITY_DELETES)
    await lake.replace([], [file], keep=True)
    with pytest.raises(Corrupt, match=r"foreign-\d+.parquet deletes rows by equality"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_columns_are_found_by_their_ids(lake: Lake) -> None:
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


async def test_a_file_without_ids_is_read_by_names(lake: Lake) -> None:
    await lake.move(many(0, 50))
    numbered = rows_of(many(0, 50))
    bare = numbered.cast(pa.schema([without_ids(field) for field in numbered.schema]))
    await lake.replace([await lake.foreign_file(bare)])
    assert await lake.read_all() == many(0, 50)


# What may be wrong


async def test_files_that_an_expiry_removed_are_looked_for_in_a_newer_snapshot(lake: Lake) -> None:
    (old,) = await lake.move(many(0, 100))
    await lake.history.start(LOG)  # knows that snapshot, and nothing of the file
    await lake.replace([await lake.foreign_file(rows_of(many(0, 100)))])
    await lake.store.delete([lake.key(old.location)])
    assert await lake.read_all() == many(0, 100)


async def test_a_missing_file_is_named(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 100))
    await lake.store.delete([lake.key(file.location)])
    with pytest.raises(Corrupt, match=rf"table default.orders lists a file .*{lake.key(file.location)}"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_any_damage_in_a_file_is_found(lake: Lake) -> None:
    """Also where it would decode: pages have checksums, and the footer must agree with the manifest."""
    (file,) = await lake.move(many(0, 30))
    assert await damaged(lake, lake.key(file.location), 13) > 50


async def damaged(lake: Lake, key: str, step: int) -> int:
    """Change one byte after the other. What is read is right, or an error names the file; returns how many errors."""
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
    # The damage may lie in the name of the file that is read next: then another part of it is right.
    assert [
        error for error in found if "tables/" not in error and ".avro" not in error and ".parquet" not in error
    ] == []
    return len(found)


async def test_a_file_that_was_mended_is_served_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was kept of it in memory: a whole small file, a footer, what manifests list."""
    monkeypatch.setattr(replay, "DOUBT_S", 0.02)
    records = many(0, 30) + many(30, 2000, 400)
    (small,) = await lake.move(records[:30])
    (large,) = await lake.move(records[30:], group_bytes_max=200_000)
    lists = [info.key async for page in lake.store.walk("tables") for info in page if info.key.endswith(".avro")]
    for key in (lake.key(small.location), lake.key(large.location), *lists):
        body = bytes(await lake.store.get(key))
        told = 0
        for at in (60, len(body) // 2, len(body) - 60, len(body) - 6):
            await lake.history.close()
            lake.history = TableHistory(lake.catalog, lake.store, 64 << 20)
            await lake.store.put(key, [body[:at], bytes([body[at] ^ 0x55]), body[at + 1 :]])
            try:
                await lake.read_all()
            except Corrupt:
                told += 1
            await lake.store.put(key, [body])
            await asyncio.sleep(0.03)
            assert await lake.read_all() == records, (key, at)
        assert told > 1 or "snap-" in key, key


async def test_a_damaged_file_is_not_read_anew_by_everybody(lake: Lake) -> None:
    (file,) = await lake.move(many(0, 30))
    body = bytes(await lake.store.get(lake.key(file.location)))
    await lake.store.put(lake.key(file.location), [body[:60], bytes([body[60] ^ 0x55]), body[61:]])
    reads = noted_reads(lake)
    for _ in range(20):
        with pytest.raises(Corrupt, match="restore"):
            await lake.history.read(LOG, 0, 1 << 20)
    assert len(reads) <= 2


@pytest.mark.parametrize("size", [0, 3, 8, 100])
async def test_a_file_that_was_cut_off(lake: Lake, size: int) -> None:
    (file,) = await lake.move(many(0, 30))
    body = bytes(await lake.store.get(lake.key(file.location)))
    await lake.store.put(lake.key(file.location), [body[:size]])
    with pytest.raises(Corrupt, match=lake.key(file.location)):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_a_damaged_manifest_is_named(lake: Lake) -> None:
    """Packed with a checksum by nobody but deflate's blocks: what cannot be told from a right one is not tried here."""
    await lake.move(many(0, 30))
    keys = [info.key async for page in lake.store.walk("tables") for info in page if info.key.endswith(".avro")]
    assert len(keys) == 2
    for key in keys:
        assert await damaged(lake, key, 37) > 10


async def test_a_table_without_its_columns_says_so(lake: Lake) -> None:
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


async def test_a_table_that_was_dropped(lake: Lake) -> None:
    await lake.move(many(0, 10))
    await lake.catalog.drop(LOG.topic_id)
    with pytest.raises(Corrupt, match="was dropped"):
        await lake.history.read(LOG, 0, 1 << 20)


async def test_offsets_that_the_table_should_have_and_does_not(lake: Lake) -> None:
    await lake.move(many(0, 10))
    with pytest.raises(Corrupt, match="up to offset 10 only, but offset 10 has left the log"):
        await lake.history.read(LOG, 10, 1 << 20)


async def test_an_old_leader_does_not_make_records_missing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of the table is old: nobody is told that records are missing before another node was asked."""
    pointers = lake.catalog.pointers
    await lake.move(many(0, 10))
    real, old = pointers.find_id, await pointers.find_id(LOG.topic_id)
    await lake.move(many(10, 20))

    async def deposed(table_id: str, *, confirmed: bool = False) -> Found:
        return await real(table_id, confirmed=True) if confirmed else old

    monkeypatch.setattr(pointers, "find_id", deposed)
    assert (await lake.history.read(LOG, 15, 1 << 20)).offset_next == 20


async def test_a_store_that_does_not_answer(lake: Lake) -> None:
    await lake.move(many(0, 10))

    async def nothing(key: str, spans: object) -> list[bytes]:
        raise Unavailable("no answer")

    lake.store.get_ranges, works = nothing, lake.store.get_ranges  # type: ignore[assignment,method-assign]
    with pytest.raises(Unavailable, match="no answer"):
        await lake.history.read(LOG, 0, 1 << 20)
    lake.store.get_ranges = works  # type: ignore[method-assign]
    assert await lake.read_all() == many(0, 10)


# Together


async def test_many_who_read_the_same_wait_for_one_read(lake: Lake) -> None:
    await lake.move(many(0, 2000, 200), group_bytes_max=1 << 20)
    reads = noted_reads(lake)
    found = await asyncio.gather(*(lake.history.read(LOG, offset, 1000) for offset in range(0, 2000, 20)))
    assert all(past.batches for past in found)
    assert len(reads) <= 2  # the footer, and the rows


def noted_reads(lake: Lake) -> list[str]:
    """What is read of data files, from now on."""
    reads: list[str] = []
    works = lake.store.get_ranges

    async def noted(key: str, spans: Sequence[Span]) -> list[Buffer]:
        reads.append(key)
        return await works(key, spans)

    lake.store.get_ranges = noted  # type: ignore[method-assign]
    return reads


async def test_who_reads_on_finds_the_next_chunk_there(lake: Lake) -> None:
    await lake.move(many(0, 2000, 200), group_bytes_max=50_000)
    first = await lake.history.read(LOG, 0, 10_000)
    assert (await lake.history._loaded())._ahead == set()
    second = await lake.history.read(LOG, first.offset_next, 10_000)
    (ahead,) = (await lake.history._loaded())._ahead
    await ahead
    assert second.batches


async def test_a_bug_in_a_thread_is_heard_of() -> None:
    """asyncio cannot hand on a StopIteration."""
    threads = Threads()
    with pytest.raises(RuntimeError, match="ended too early"):
        await asyncio.wait_for(threads(lambda: next(iter(()))), 5)
    await threads.close()
