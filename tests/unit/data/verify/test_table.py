"""Checks of tables by `lakestream doctor`: no findings for valid tables of any writer; one line per problem."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFileContent
from tests.harness.table.history_tables import LOG, NOW_MS, TOPIC_ID, Lake, many, rows_of
from tests.harness.table.reference_codec import LONG_MAX, Record, batch_of

from lakestream.aio.threads import Threads
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import (
    AddSchema,
    RemoveProperties,
    RemoveSnapshots,
    SetCurrentSchema,
    SetProperties,
    SetSnapshotRef,
    Update,
)
from lakestream.catalog.topic_table.offsets import LAST_COMMIT, NEXT_OFFSETS, main_of, text_of
from lakestream.clock import SystemClock
from lakestream.data.table.history_types import HistoryRead
from lakestream.data.table.read.parquet_footer import TAIL_BYTES
from lakestream.data.verify import file_checks as pure
from lakestream.data.verify.file_checks import NamedFile
from lakestream.data.verify.sampling import FULL, SAMPLED, Depth
from lakestream.data.verify.snapshot_checks import TableReport
from lakestream.data.verify.table import PAUSE_MS, TableVerifier
from lakestream.metadata.claims import Claims
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId, Span

DAY_MS = 24 * 60 * 60 * 1000


class Served:
    """A log whose records are all in its table, except `tail`."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.tail: list[Record] = []
        self.end = 0

    async def ends(self, partition: PartitionId) -> Span:
        return Span(0, self.end if partition == LOG else 0)

    async def history(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        return await self.lake.history.read(partition, offset, bytes_max)

    async def read(self, partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        behind = [record for record in self.tail if record.offset >= offset]
        if behind and behind[0].offset == offset:
            body = bytearray(batch_of(behind))
            body[:8] = offset.to_bytes(8, "big")
            return HistoryRead([(offset, [bytes(body)])], behind[-1].offset + 1)
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
        """Moves records from the log to the table."""
        await self.lake.move(records, end, **parquet)
        self.served.end = end or records[-1].offset + 1
        await self.claims.advance_table_end(LOG, self.served.end)
        await self.claims.raise_floor(LOG, self.served.end)

    async def verify(self, depth: Depth = FULL) -> TableReport:
        verifier = TableVerifier(
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
        return await verifier.verify("orders", self.topic)

    async def problems(self, depth: Depth = FULL) -> list[str]:
        return [problem.text for problem in (await self.verify(depth)).problems]

    async def commit(self, *updates: Update) -> None:
        await self.lake.catalog.commit(TOPIC_ID, [], list(updates))

    def paths(self, pattern: str) -> list[Path]:
        return sorted(self.lake.root.rglob(pattern))


class HandClock:
    """The real time plus `ahead_ms`."""

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
    """Asserts that there is one finding, one line, with all these parts."""
    assert len(found) == 1, found
    for part in parts:
        assert part in found[0], found[0]
    assert "\n" not in found[0]


# Valid tables


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_no_findings_when_the_table_is_valid(doctor: Doctor, depth: Depth) -> None:
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
    found = await doctor.verify(depth)
    assert (found.problems, found.notes, found.lag) == ([], [], 100)
    assert "default.orders: 1,993 rows" in found.summary


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_no_findings_when_files_are_read_in_parts(doctor: Doctor, depth: Depth) -> None:
    luck = random.Random(3)
    records = [Record(at, NOW_MS + at, 0, luck.randbytes(20), luck.randbytes(400)) for at in range(1_000)]
    await doctor.move(records, group_bytes_max=100_000)
    assert all(path.stat().st_size > 2 * TAIL_BYTES for path in doctor.paths("*.parquet"))
    assert await doctor.problems(depth) == []


async def test_no_findings_when_the_topic_has_no_table(doctor: Doctor) -> None:
    await doctor.lake.catalog.drop(TOPIC_ID)
    found = await doctor.verify()
    assert (found.problems, found.summary) == ([], "no table yet; 0 offsets in the log")


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
async def test_no_findings_when_engines_rewrote_or_deleted_rows(doctor: Doctor, depth: Depth) -> None:
    """Rows in another order, files without bounds, position deletes, and an added column."""
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
    assert await doctor.problems(depth) == []


# Files


async def test_finding_when_a_file_is_truncated(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    (path,) = doctor.paths("*.parquet")
    path.write_bytes(path.read_bytes()[:-50])
    only(await doctor.problems(SAMPLED), path.name, "bytes", "restore it from a backup")


async def test_finding_when_bytes_of_a_file_are_damaged(doctor: Doctor) -> None:
    await doctor.move(many(0, 1_000))
    (path,) = doctor.paths("*.parquet")
    body = bytearray(path.read_bytes())
    body[200:240] = bytes(40)  # of the first column, the values
    path.write_bytes(body)
    only(await doctor.problems(), path.name, "damaged", "restore it from a backup")
    body[-600:-500] = bytes(100)
    path.write_bytes(body)
    only(await doctor.problems(SAMPLED), path.name, "footer", "restore it from a backup")


async def test_finding_when_a_file_is_missing(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.move(many(100, 200))
    path = doctor.paths("*.parquet")[0]
    path.unlink()
    only(await doctor.problems(SAMPLED), path.name, "is missing", "restore it from a backup")


@pytest.mark.parametrize("pattern", ["*-m0*.avro", "snap-*.avro"])
async def test_finding_when_a_manifest_or_manifest_list_is_missing_or_damaged(doctor: Doctor, pattern: str) -> None:
    await doctor.move(many(0, 100))
    path = doctor.paths(pattern)[-1]
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])
    only([one for one in await doctor.problems() if path.name in one][:1], "damaged", "restore it from a backup")
    path.unlink()
    only([one for one in await doctor.problems() if path.name in one][:1], "is missing", "restore it from a backup")


async def test_finding_when_the_metadata_file_is_missing(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    newest = (await doctor.lake.table()).metadata_location
    (doctor.lake.root / doctor.lake.key(newest)).unlink()
    doctor.lake.catalog._files._cache.clear()
    only(await doctor.problems(), newest, "the current metadata file of a table", "backup")


async def test_finding_when_manifests_contradict_files(doctor: Doctor) -> None:
    """Bounds, row counts and the sort order are compared with the file."""
    lake = doctor.lake
    await doctor.move(many(0, 100))
    file = await lake.foreign_file(rows_of(many(0, 100)))
    file.upper_bounds[4] = (90).to_bytes(8, "little")
    await lake.replace([file])
    only(await doctor.problems(SAMPLED), file.file_path, "offsets 0 to 99, its manifest says 0 to 90")

    unsorted = await lake.foreign_file(rows_of(many(0, 100)).take(pa.array([*range(50, 100), *range(50)])))
    unsorted[15] = 1  # sort_order_id
    await lake.replace([unsorted])
    only(await doctor.problems(SAMPLED), unsorted.file_path, "is marked as sorted by offset, and is not")

    short = await lake.foreign_file(rows_of(many(0, 100)))
    short[4] = 120  # record_count
    await lake.replace([short])
    assert any("100, not 120, rows" in one for one in await doctor.problems(SAMPLED))


# Table and log


async def test_finding_when_rows_were_added_twice(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    await doctor.move(many(100, 200))
    again = await lake.foreign_file(rows_of(many(50, 150)))
    await lake.replace([again], keep=True)
    for depth in (SAMPLED, FULL):
        only(
            await doctor.problems(depth),
            "partition 0: offset 50 is in",
            again.file_path,
            "only one of the rows",
            "roll back",
        )
    bounds_only = SAMPLED._replace(windows=0, borders=0)
    only(await doctor.problems(bounds_only), "hold 300 rows for the 200 offsets", "roll back")


async def test_finding_when_rows_have_offsets_beyond_the_table_end(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    await lake.replace([await lake.foreign_file(rows_of(many(100, 110)))], keep=True)
    only(await doctor.problems(SAMPLED), "up to offset 109", "before 100 only")
    hidden = await lake.foreign_file(rows_of(many(200, 210)), bounds=False)
    await lake.replace([hidden])
    found = await doctor.problems()
    assert any(hidden.file_path in one and "up to offset 209" in one for one in found), found


async def test_finding_when_the_table_was_dropped(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.catalog.drop(TOPIC_ID)
    only(await doctor.problems(), "its table was dropped", "before offset 100 of partition 0", "register")


async def test_finding_when_the_table_was_rolled_back(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    first = main_of((await doctor.lake.table()).metadata)
    await doctor.move(many(100, 200))
    last = main_of((await doctor.lake.table()).metadata)
    assert first is not None
    await doctor.commit(SetSnapshotRef("main", "branch", first))
    only(
        await doctor.problems(),
        "the table was rolled back",
        f"roll forward (CALL system.set_current_snapshot to {last})",
        "accept the loss",
    )


async def test_removed_next_offsets_are_inherited_or_a_finding(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.commit(RemoveProperties([NEXT_OFFSETS]))
    assert await doctor.problems() == []
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
    metadata = (await doctor.lake.table()).metadata
    await doctor.commit(RemoveSnapshots([metadata["snapshots"][0]["snapshot-id"]]), RemoveProperties([LAST_COMMIT]))
    only(await doctor.problems(), "lakestream.next-offsets was removed", "set it again")


async def test_finding_when_next_offsets_were_set(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
    first = (await doctor.lake.table()).metadata["snapshots"][0]["snapshot-id"]
    await doctor.commit(RemoveSnapshots([first]), SetProperties({NEXT_OFFSETS: text_of({0: 60})}))
    found = await doctor.problems()
    assert any("before offset 100 were moved from the log" in one and "next offset is 60" in one for one in found), (
        found
    )
    await doctor.commit(SetProperties({NEXT_OFFSETS: text_of({0: 160})}))
    found = await doctor.problems()
    assert any("next offset is 160, but the log ends at 100" in one for one in found), found


async def test_finding_when_a_column_was_dropped(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    schema = schema_of((await doctor.lake.table()).metadata)
    value, stream = schema["fields"]
    kept = [field for field in stream["type"]["fields"] if field["name"] != "headers"]
    dropped = {**stream, "type": {**stream["type"], "fields": kept}}
    await doctor.commit(AddSchema({**schema, "fields": [value, dropped]}), SetCurrentSchema(-1))
    only(await doctor.problems(), "column _stream.headers was dropped", "set its current schema back to 0")


# Records as Kafka consumers get them


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (lambda records: records[:5] + records[6:], "offset 5 is in the table and is not served"),
        (lambda records: [*records[:5], records[5]._replace(value=b"other"), *records[6:]], "offset 5 is served"),
        (lambda records: [*records[:7], records[7]._replace(headers=((b"h", None),)), *records[8:]], "offset 7"),
        (lambda records: [*records[:7], records[7]._replace(key=None), *records[8:]], "offset 7"),
        (lambda records: [*records[:7], records[7]._replace(timestamp=1), *records[8:]], "offset 7"),
    ],
)
async def test_finding_when_served_records_differ_from_the_table(doctor: Doctor, change: object, finding: str) -> None:
    assert callable(change)
    await doctor.move(many(0, 100))

    async def wrong(partition: PartitionId, offset: int, bytes_max: int) -> HistoryRead:
        body = bytearray(batch_of(change(many(0, 100))))
        return HistoryRead([(0, [bytes(body)])], 100)

    doctor.served.history = wrong  # type: ignore[method-assign]
    found = await doctor.problems(SAMPLED)
    assert any(finding in one and "out of the table" in one for one in found), found


async def test_records_in_both_table_and_log_are_compared(doctor: Doctor) -> None:
    """Records that are in both, because the log is not trimmed yet, must be equal, except rows deleted by an engine."""
    await doctor.lake.move(many(0, 100))
    doctor.served.tail, doctor.served.end = many(0, 150), 150
    assert await doctor.problems() == []
    doctor.served.tail = [*many(0, 95), Record(95, 0, 0, None, b"other"), *many(96, 150)]
    only(await doctor.problems(), "offset 95 is served where table and log meet with other content")
    doctor.served.tail = [*many(0, 95), *many(96, 150)]
    only(await doctor.problems(), "offset 95 is in the table and is not served where table and log meet")
    doctor.served.tail, doctor.pause_ms = many(0, 150), PAUSE_MS
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 95)))])
    assert await doctor.problems() == []


# Concurrent changes


async def test_no_finding_when_the_second_check_passes(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is removed by an expiration or replaced by a rewrite during the check."""
    await doctor.move(many(0, 100))
    (path,) = doctor.paths("*.parquet")
    path.unlink()
    get = doctor.topics.get

    async def rewritten(name: str) -> Topic:
        await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])
        return await get(name)

    monkeypatch.setattr(doctor.topics, "get", rewritten)
    assert await doctor.problems() == []


async def test_no_findings_during_concurrent_rewrites_and_expirations(doctor: Doctor) -> None:
    """Files and snapshots may be removed while they are checked."""
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
                assert await doctor.problems(depth) == []
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()


async def test_no_findings_when_the_topic_is_deleted_during_the_check(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.topics.delete("orders")
    await doctor.lake.catalog.drop(TOPIC_ID)
    assert await doctor.problems() == []


# Orphans


async def test_orphans_are_counted_as_information(doctor: Doctor) -> None:
    await doctor.move(many(0, 100))
    await doctor.lake.replace([await doctor.lake.foreign_file(rows_of(many(0, 100)))])  # the old file is in a snapshot
    stray = doctor.paths("*.parquet")[0].with_name("stray.parquet")
    stray.write_bytes(b"12345")
    assert (await doctor.verify()).notes == []
    doctor.clock.ahead_ms = 2 * DAY_MS
    for depth in (SAMPLED, FULL):
        found = await doctor.verify(depth)
        assert found.problems == []
        only(found.notes, "1 orphans older than a day, 5 bytes", "stray.parquet")
    found = await doctor.verify(SAMPLED._replace(old_reads=0))
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


def test_windows_have_as_many_small_files_as_fit() -> None:
    files = [file((at * 10, at * 10 + 9), pure.WINDOW_BYTES // 30) for at in range(100)]
    assert [span.size for span in pure.windows(files, 1_000)] == [100] * 10


async def test_finding_when_a_file_is_outside_of_the_table_location(doctor: Doctor) -> None:
    await doctor.move(many(0, 10))
    elsewhere = f"{(await doctor.lake.table()).metadata['location']}-other/data"
    file = await doctor.lake.foreign_file(rows_of(many(0, 10)), folder=elsewhere)
    await doctor.lake.replace([file])
    (said,) = [text for text in await doctor.problems() if file.file_path in text and "cannot be read" in text]
    assert "a table may name only files under its own location" in said
