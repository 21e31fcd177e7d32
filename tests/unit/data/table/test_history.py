"""History as brokers read it: offsets and times to batches, whoever wrote the table's files and however."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.data.table.lakes import LOG, NOW_MS, Lake, many
from tests.unit.data.table.plain import LONG_MAX, Record

from lakestream.model import PartitionId


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
