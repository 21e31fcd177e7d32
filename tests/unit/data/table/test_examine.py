"""What `lakestream doctor` says of tables: nothing while all is well, whoever wrote them; one line for what is not."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFileContent
from tests.unit.data.table.lakes import LOG, NOW_MS, TOPIC_ID, Lake, many, rows_of
from tests.unit.data.table.plain import LONG_MAX, Record, batch_of

from lakestream.catalog.next_offsets import LAST_COMMIT, NEXT_OFFSETS, main_of, text_of
from lakestream.catalog.shapes import schema_of
from lakestream.catalog.updates import (
    AddSchema,
    RemoveProperties,
    RemoveSnapshots,
    SetCurrentSchema,
    SetProperties,
    SetSnapshotRef,
    Update,
)
from lakestream.clock import SystemClock
from lakestream.data.table import examine_files as pure
from lakestream.data.table.examine import PAUSE_MS, Examiner
from lakestream.data.table.examine_choice import FULL, SAMPLED, Depth
from lakestream.data.table.examine_files import NamedFile
from lakestream.data.table.examine_look import Examined
from lakestream.data.table.footers import TAIL_BYTES
from lakestream.data.table.past import Past
from lakestream.data.table.threads import Threads
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId, Span

DAY_MS = 24 * 60 * 60 * 1000


class Served:
    """A log that has nothing but its table, and `tail` behind it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tail: list[Record] = []
        self.end = 0

    async def ends(self, partition: PartitionId) -> Span:
        return Span(0, self.end if partition == LOG else 0)

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        return await self.lake.history.read(partition, offset, bytes_max)

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> Past:
        behind = [record for record in self.tail if record.offset >= offset]
        if behind and behind[0].offset == offset:
            body = bytearray(batch_of(behind))
            body[:8] = offset.to_bytes(8, "big")
            return Past([(offset, [bytes(body)])], behind[-1].offset + 1)
        return await self.history(partition, offset, bytes_max)


class Doctor:
    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        metadata = lake.server.client()
        self.claims = Claims(metadata)
        self.topics = Topics(metadata)
        self.topic = Topic(TOPIC_ID, 2)
        self.served = Served(lake)
        self.threads = Threads()
        self.clock = HandClock()
        self.pause_ms = 0

    async def move(self, records: Sequence[Record], end: int | None = None, **parquet: int) -> None:
        """Into the table, and out of the log."""
        await self.lake.move(records, end, **parquet)
        self.served.end = end or records[-1].offset + 1
        await self.claims.advance_table_end(LOG, self.served.end)
        await self.claims.raise_floor(LOG, self.served.end)

    async def look(self, depth: Depth = FULL) -> Examined:
        examiner = Examiner(
            self.lake.catalog,
            self.claims,
            self.topics,
            self.served,
            self.threads,
            self.clock,
            random.Random(1),
            depth,
            pause_ms=self.pause_ms,
        )
        return await examiner.examine("orders", self.topic)

    async def troubles(self, depth: Depth = FULL) -> list[str]:
        return [trouble.text for trouble in (await self.look(depth)).troubles]

    async def commit(self, *updates: Update) -> None:
        await self.lake.catalog.commit(TOPIC_ID, [], list(updates))

    def paths(self, pattern: str) -> list[Path]:
        return sorted(self.lake.root.rglob(pattern))


class HandClock:
    """The real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.ahead_ms


@pytest_asyncio.fixture
async def doctor(tmp_path: Path) -> AsyncIterator[Doctor]:
    lake = await Lake(tmp_path).open()
    doctor = Doctor(lake)
    await doctor.topics.create("orders", doctor.topic)
    yield doctor
    await doctor.threads.close()
    await lake.close()


def only(found: list[str], *parts: str) -> None:
    """One line, which says all of this."""
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0], found[0]
    assert "\n" not in found[0]


# All is well


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_nothing_is_said_of_a_table_that_is_well(doctor: Doctor, depth: Depth) -> None:
    odd = [
        Record(2, -1, 0, None, None),
        Record(3, LONG_MAX, 0, b"", b"", ((b"h", None), (b"h", b""), (b"\xff", b"raw"))),
        Record(9, 1_700_000_000_000, 1, b"k" * 300, b"x" * 5000),
    ]
    await doctor.move(odd)
    for start in range(10, 2_000, 199):
        await doctor.move(many(start, start + 199), group_bytes_max=2_000)
    await doctor.move([], 2_100)
    doctor.served.tail, doctor.served.end = many(2_100, 2_200), 2_200
    found = await doctor.look(depth)
    assert (found.troubles, found.notes, found.behind) == ([], [], 100)
    assert "default.orders: 1,993 rows" in found.said


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_nor_of_files_that_are_not_read_as_a_whole(doctor: Doctor, depth: Depth) -> None:
    luck = random.Random(3)
    records = [Record(at, NOW_MS + at, 0, luck.randbytes(20), luck.randbytes(400)) for at in range(1_000)]
    await doctor.move(records, group_bytes_max=100_000)
    assert all(path.stat().st_size > 2 * TAIL_BYTES for path in doctor.paths("*.parquet"))
    assert await doctor.troubles(depth) == []


async def test_nor_of_one_that_is_not_there_yet(doctor: Doctor) -> None:
    await doctor.lake.catalog.drop(TOPIC_ID)
    found = await doctor.look()
    assert (found.troubles, found.said) == ([], "no table yet; 0 offsets in the log")


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_nor_of_what_others_have_made_of_it(doctor: Doctor, depth: Depth) -> None:
    """Rewritten in another order, without bounds, with rows deleted in place, with a column more."""
    lake = doctor.lake
    await doctor.move(many(0, 1_000))
    rows = rows_of(many(0, 1_000)).take(pa.array(random.Random(1).sample(range(1_000), 1_000)))
    files = [await lake.foreign_file(rows[at : at + 200], row_group_size=50) for at in range(0, 800, 200)]
    files.append(await lake.foreign_file(rows[800:], bounds=False, write_statistics=False))
    await lake.replace(files)
    places = pa.table({"file_path": [files[0].file_path] * 3, "pos": pa.array([0, 7, 199], pa.int64())})
    deletes = await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)
    await lake.replace([], [deletes], keep=True)
    schema = schema_of((await lake.table()).metadata)
    more = {"id": 100, "name": "note", "required": False, "type": "string"}
    await doctor.commit(AddSchema({**schema, "fields": [*schema["fields"], more]}), SetCurrentSchema(-1))
    await doctor.move(many(1_000, 1_100))
    assert await doctor.troubles(depth) == []


# Files


async def test_a_file_that_is_cut_off(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    (path,) = doctor.paths("*.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    only(await doctor.troubles(SAMPLED), path.name, "bytes", "restore it from a backup")


async def test_a_file_whose_bytes_are_wrong(doctor: Doctor) -> None:
    await doctor.move(many(0, 1_000))
    (path,) = doctor.paths("*.parquet")
    body = bytearray(path.read_bytes())
    body[200:240] = bytes(40)  # of the first column, the values
    path.write_bytes(body)
    only(await doctor.troubles(), path.name, "damaged", "restore it from a backup")
    body[-600:-500] = bytes(100)
    path.write_bytes(body)
    only(await doctor.troubles(SAMPLED), path.name, "footer", "restore it from a backup")


async def test_a_file_that_is_gone(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.move(many(100, 200))
    path = doctor.paths("*.parquet")[0]
    path.unlink()
    only(await doctor.troubles(SAMPLED), path.name, "is missing", "restore it from a backup")


@pytest.mark.parametrize("pattern", ["*-m0*.avro", "snap-*.avro"])
async def test_a_manifest_or_list_that_is_gone_or_damaged(doctor: Doctor, pattern: str) -> None:
    await doctor.move(many(0, 100))
    path = doctor.paths(pattern)[-1]
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])
    only([one for one in await doctor.troubles() if path.name in one][:1], "damaged", "restore it from a backup")
    path.unlink()
    only([one for one in await doctor.troubles() if path.name in one][:1], "is missing", "restore it from a backup")


async def test_a_metadata_file_that_is_gone(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    newest = (await doctor.lake.table()).metadata_location
    (doctor.lake.root / doctor.lake.key(newest)).unlink()
    doctor.lake.catalog._files._cache.clear()
    only(await doctor.troubles(), newest, "somebody removed a table's newest metadata file", "backup")


async def test_manifests_that_say_what_is_not_so(doctor: Doctor) -> None:
    """Bounds, rows and the order of rows are held against the file itself."""
    lake = doctor.lake
    await doctor.move(many(0, 100))
    file = await lake.foreign_file(rows_of(many(0, 100)))
    file.upper_bounds[4] = (90).to_bytes(8, "little")
    await lake.replace([file])
    only(await doctor.troubles(SAMPLED), file.file_path, "offsets 0 to 99, its manifest says 0 to 90")

    unsorted = await lake.foreign_file(rows_of(many(0, 100)).take(pa.array([*range(50, 100), *range(50)])))
    unsorted[15] = 1  # sort_order_id
    await lake.replace([unsorted])
    only(await doctor.troubles(SAMPLED), unsorted.file_path, "says that it is sorted by offset, and is not")

    short = await lake.foreign_file(rows_of(many(0, 100)))
    short[4] = 120  # record_count
    await lake.replace([short])
    assert any("100, not 120, rows" in one for one in await doctor.troubles(SAMPLED))


# The table beside the log


async def test_rows_that_somebody_added_again(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    await doctor.move(many(100, 200))
    again = await lake.foreign_file(rows_of(many(50, 150)))
    await lake.replace([again], keep=True)
    for depth in (SAMPLED, FULL):
        only(await doctor.troubles(depth), "partition 0: offset 50 is in", again.file_path, "roll back")
    bounds_only = SAMPLED._replace(windows=0, borders=0)
    only(await doctor.troubles(bounds_only), "hold 300 rows for the 200 offsets", "roll back")


async def test_rows_of_offsets_that_are_yet_to_come(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    await lake.replace([await lake.foreign_file(rows_of(many(100, 110)))], keep=True)
    only(await doctor.troubles(SAMPLED), "up to offset 109", "before 100 only")
    hidden = await lake.foreign_file(rows_of(many(200, 210)), bounds=False)
    await lake.replace([hidden])
    found = await doctor.troubles()
    assert any(hidden.file_path in one and "up to offset 209" in one for one in found), found


async def test_a_table_that_was_dropped(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.catalog.drop(TOPIC_ID)
    only(await doctor.troubles(), "its table was dropped", "before offset 100 of partition 0", "register")


async def test_a_table_that_was_rolled_back(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    first = main_of((await doctor.lake.table()).metadata)
    await doctor.move(many(100, 200))
    last = main_of((await doctor.lake.table()).metadata)
    assert first is not None
    await doctor.commit(SetSnapshotRef("main", "branch", first))
    only(
        await doctor.troubles(),
        "somebody rolled the table back",
        f"roll forward (CALL system.set_current_snapshot to {last})",
        "accept the loss",
    )


async def test_next_offsets_that_were_removed_are_inherited_or_nobody_knows(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.commit(RemoveProperties([NEXT_OFFSETS]))
    assert await doctor.troubles() == []
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
    metadata = (await doctor.lake.table()).metadata
    await doctor.commit(RemoveSnapshots([metadata["snapshots"][0]["snapshot-id"]]), RemoveProperties([LAST_COMMIT]))
    only(await doctor.troubles(), "lakestream.next-offsets was removed", "set it again")


async def test_next_offsets_that_were_set(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
    first = (await doctor.lake.table()).metadata["snapshots"][0]["snapshot-id"]
    await doctor.commit(RemoveSnapshots([first]), SetProperties({NEXT_OFFSETS: text_of({0: 60})}))
    found = await doctor.troubles()
    assert any("before offset 100 have left the log" in one and "up to 60 only" in one for one in found), found
    await doctor.commit(SetProperties({NEXT_OFFSETS: text_of({0: 160})}))
    found = await doctor.troubles()
    assert any("up to 160, but the log ends at 100" in one for one in found), found


async def test_a_column_that_was_dropped(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    schema = schema_of((await doctor.lake.table()).metadata)
    value, stream = schema["fields"]
    kept = [field for field in stream["type"]["fields"] if field["name"] != "headers"]
    dropped = {**stream, "type": {**stream["type"], "fields": kept}}
    await doctor.commit(AddSchema({**schema, "fields": [value, dropped]}), SetCurrentSchema(-1))
    only(await doctor.troubles(), "column _stream.headers was dropped", "set its current schema back to 0")


# What Kafka serves


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda records: records[:5] + records[6:], "offset 5 is in the table and is not served"),
        (lambda records: [*records[:5], records[5]._replace(value=b"other"), *records[6:]], "offset 5 is served"),
        (lambda records: [*records[:7], records[7]._replace(headers=((b"h", None),)), *records[8:]], "offset 7"),
        (lambda records: [*records[:7], records[7]._replace(key=None), *records[8:]], "offset 7"),
        (lambda records: [*records[:7], records[7]._replace(timestamp=1), *records[8:]], "offset 7"),
    ],
)
async def test_what_is_served_is_what_the_table_has(doctor: Doctor, change: object, said: str) -> None:
    assert callable(change)
    await doctor.move(many(0, 100))

    async def wrong(partition: PartitionId, offset: int, bytes_max: int) -> Past:
        body = bytearray(batch_of(change(many(0, 100))))
        return Past([(0, [bytes(body)])], 100)

    doctor.served.history = wrong  # type: ignore[method-assign]
    found = await doctor.troubles(SAMPLED)
    assert any(said in one and "out of the table" in one for one in found), found


async def test_where_table_and_log_meet(doctor: Doctor) -> None:
    """Records that are in both, since they were not trimmed yet, are the same; but for those that were deleted."""
    await doctor.lake.move(many(0, 100))
    doctor.served.tail, doctor.served.end = many(0, 150), 150
    assert await doctor.troubles() == []
    doctor.served.tail = [*many(0, 95), Record(95, 0, 0, None, b"other"), *many(96, 150)]
    only(await doctor.troubles(), "offset 95 is served where table and log meet with other content")
    doctor.served.tail = [*many(0, 95), *many(96, 150)]
    only(await doctor.troubles(), "offset 95 is in the table and is not served where table and log meet")
    doctor.served.tail, doctor.pause_ms = many(0, 150), PAUSE_MS
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 95)))])
    assert await doctor.troubles() == []


# While others work


async def test_what_is_mended_before_the_second_look_is_not_said(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that an expiry removed, or that a rewrite replaced, just when it was looked at."""
    await doctor.move(many(0, 100))
    (path,) = doctor.paths("*.parquet")
    path.unlink()
    get = doctor.topics.get

    async def rewritten(name: str) -> Topic:
        await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
        return await get(name)

    monkeypatch.setattr(doctor.topics, "get", rewritten)
    assert await doctor.troubles() == []


async def test_beside_somebody_who_rewrites_and_expires_all_the_time(doctor: Doctor) -> None:
    """Every file that was looked at may be gone a moment later, and with it the snapshot that named it."""
    lake, rewrites = doctor.lake, 0
    for start in range(0, 600, 100):
        await doctor.move(many(start, start + 100))
    rows = rows_of(many(0, 600))

    async def rewrite() -> None:
        nonlocal rewrites
        while True:
            await asyncio.sleep(0.1)
            old = doctor.paths("*.parquet")
            await lake.replace([await lake.foreign_file(rows[at : at + 150]) for at in range(0, 600, 150)])
            metadata = (await lake.table()).metadata
            main = main_of(metadata)
            expired = [one["snapshot-id"] for one in metadata["snapshots"] if one["snapshot-id"] != main]
            await doctor.commit(RemoveSnapshots(expired))
            for path in old:
                path.unlink()
            rewrites += 1

    task = asyncio.create_task(rewrite())
    try:
        while rewrites < 10 and not task.done():
            for depth in (FULL, SAMPLED):
                assert await doctor.troubles(depth) == []
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def test_a_topic_that_is_deleted_meanwhile_has_no_troubles(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.topics.delete("orders")
    await doctor.lake.catalog.drop(TOPIC_ID)
    assert await doctor.troubles() == []


# Orphans


async def test_orphans_are_counted_as_information(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])  # the old file is in a snapshot
    stray = doctor.paths("*.parquet")[0].with_name("stray.parquet")
    stray.write_bytes(b"12345")
    assert (await doctor.look()).notes == []
    doctor.clock.ahead_ms = 2 * DAY_MS
    for depth in (SAMPLED, FULL):
        found = await doctor.look(depth)
        assert found.troubles == []
        only(found.notes, "1 orphans older than a day, 5 bytes", "stray.parquet")
    found = await doctor.look(SAMPLED._replace(old_reads=0))
    only(found.notes, "4 files older than a day are not in the newest snapshot", "--full")


# Windows


def file(bounds: tuple[int | None, int | None], size: int) -> NamedFile:
    return NamedFile(f"f{bounds[0]}", 0, True, 1, size, 1, 0, (0, 0), bounds, True, None, None)


def test_windows_cover_every_offset_once() -> None:
    luck = random.Random(5)
    for _ in range(300):
        end = luck.randrange(1, 2_000)
        files = []
        for _ in range(luck.randrange(6)):
            low = luck.randrange(end)
            low_high = (low, luck.randrange(low, end)) if luck.random() < 0.9 else (None, None)
            files.append(file(low_high, luck.randrange(1, 3 * pure.WINDOW_BYTES)))
        found = pure.windows(files, end)
        assert (found[0].start, found[-1].end) == (0, end)
        assert all(one.end == other.start and one.size > 0 for one, other in pairwise(found))


def test_windows_hold_as_many_small_files_as_fit() -> None:
    files = [file((at * 10, at * 10 + 9), pure.WINDOW_BYTES // 30) for at in range(100)]
    assert [span.size for span in pure.windows(files, 1_000)] == [100] * 10
