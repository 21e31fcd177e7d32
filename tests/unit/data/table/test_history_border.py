"""Reads of a log whose first records are in the table, across the border between both."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.harness.log.brokers import QUICK
from tests.harness.table.history_tables import LOG, NOW_MS, Lake, many
from tests.harness.table.reference_codec import Record, batch_of, read_batch

from lakestream.clock import SeededIds, SystemClock
from lakestream.config.settings import Profile
from lakestream.data.log.log import Log
from lakestream.data.log.offset_lookup import TimestampOffset
from lakestream.errors import Corrupt, OutOfRange
from lakestream.metadata.claims import Claims
from lakestream.records.batch import RecordBatch
from lakestream.records.file_region import as_bytes

ALL = 1 << 20


class Border:
    """A log, its table, a broker, and the steps of a pipeline."""

    def __init__(self, root: Path) -> None:
        self.lake = Lake(root)
        self.claims = Claims(self.lake.server.client())
        self.log, self.driver = self._log(2), self._log(3)

    def _log(self, seed: int) -> Log:
        return Log(
            self.lake.server.client(),
            self.lake.store,
            None,
            QUICK,
            SystemClock(),
            SeededIds(random.Random(seed)),
            profile_of=lambda _: Profile.COST,
            history=self.lake.history,
        )

    async def open(self) -> "Border":
        await self.lake.open()
        await self.claims.create_logs([LOG])
        await self.log.start()
        return self

    async def close(self) -> None:
        await self.log.close()
        await self.driver.close()
        await self.lake.close()

    async def append(self, records: list[Record]) -> None:
        """Appends batches of ten records."""
        for at in range(0, len(records), 10):
            await self.log.append(LOG, RecordBatch.parse(batch_of(records[at : at + 10])))

    async def move(self, records: list[Record], upto: int) -> None:
        """Writes these records to the table, and trims the log before `upto`."""
        await self.lake.move(records, upto)
        await self.claims.advance_table_end(LOG, upto)
        await self.driver.trim(LOG, upto)
        if (view := self.log._views.cached(LOG)) is not None:
            view.floor_read_s -= 10  # the cached floor expires

    async def read(self, offset: int, end: int) -> list[Record]:
        found: list[Record] = []
        while offset < end:
            part = await self.log.read(LOG, offset, ALL)
            assert part.offset_next > offset
            found += [one for _, pieces in part.batches for one in read_batch(as_bytes(pieces)) if one.offset >= offset]
            offset = part.offset_next
        return found


@pytest_asyncio.fixture
async def border(tmp_path: Path) -> AsyncIterator[Border]:
    border = await Border(tmp_path).open()
    yield border
    await border.close()


async def test_read_continues_from_the_table_into_the_log(border: Border) -> None:
    await border.append(many(0, 100))
    await border.move(many(0, 60), 60)
    for offset in (0, 15, 59, 60, 61, 99):
        assert await border.read(offset, 100) == many(offset, 100)
    assert await border.log.bounds(LOG) == (0, 100, 100)
    await border.move(many(60, 100), 100)
    assert await border.read(0, 100) == many(0, 100)
    assert (await border.log.read(LOG, 100, ALL)).batches == []
    await border.append(many(100, 110))
    assert await border.read(95, 110) == many(95, 110)


async def test_tail_is_read_from_memory_when_the_table_has_older_records(border: Border) -> None:
    await border.append(many(0, 30))
    await border.move(many(0, 20), 20)
    await border.append(many(30, 40))
    assert border.log.read_cached(LOG, 30, ALL) is None  # the cached floor is too old, so it is read first
    await border.read(30, 40)
    found = border.log.read_cached(LOG, 30, ALL)
    assert found is not None
    assert found.bounds == (0, 40, 40)
    assert border.log.read_cached(LOG, 5, ALL) is None


async def test_cached_records_are_not_read_after_they_were_deleted_from_the_table(border: Border) -> None:
    await border.append(many(0, 30))
    assert await border.read(0, 30) == many(0, 30)
    await border.move(many(10, 20), 20)
    assert await border.read(0, 30) == many(10, 30)


async def test_gap_is_skipped_within_one_read(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 5), 20)
    found = await border.log.read(LOG, 7, ALL)
    assert found.batches[0][0] == 20
    assert await border.read(0, 40) == many(0, 5) + many(20, 40)


async def test_gap_at_the_end_is_a_batch_without_records(border: Border) -> None:
    await border.append(many(0, 20))
    await border.move(many(0, 5), 20)
    found = await border.log.read(LOG, 7, ALL)
    ((offset, pieces),) = found.batches
    assert (offset, found.offset_next, read_batch(as_bytes(pieces))) == (7, 20, [])
    assert (await border.log.read(LOG, 20, ALL)).batches == []
    await border.append(many(20, 30))
    assert (await border.log.read(LOG, 7, ALL)).batches[0][0] == 20


async def test_log_start_is_the_first_row_the_pointer_or_the_log_floor(border: Border) -> None:
    """The log start is that of DeleteRecords, or the first row, or the first record in the log."""
    await border.append(many(0, 40))
    await border.move(many(5, 10), 20)
    assert (await border.log.bounds(LOG)).start == 5
    assert border.log.cached_start(LOG) == 5
    assert await border.log.delete_before(LOG, 8) == 8
    with pytest.raises(OutOfRange, match="before the log start offset 8"):
        await border.log.read(LOG, 7, ALL)
    assert await border.read(8, 40) == many(8, 10) + many(20, 40)
    assert await border.log.delete_before(LOG, 25) == 25
    assert await border.read(25, 40) == many(25, 40)


async def test_log_start_is_the_floor_when_the_table_has_no_rows(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move([], 20)
    assert (await border.log.bounds(LOG)).start == 20
    assert await border.read(0, 40) == many(20, 40)


async def test_offset_by_timestamp_in_table_and_log(border: Border) -> None:
    await border.append(many(0, 100))
    await border.move(many(0, 60), 60)
    for offset in (0, 30, 59, 60, 61, 99):
        assert await border.log.first_at(LOG, NOW_MS + offset) == TimestampOffset(NOW_MS + offset, offset)
    assert await border.log.first_at(LOG, NOW_MS + 100) is None
    assert await border.log.newest_time(LOG) == TimestampOffset(NOW_MS + 99, 99)
    await border.log.delete_before(LOG, 40)
    assert await border.log.first_at(LOG, NOW_MS) == TimestampOffset(NOW_MS + 40, 40)
    await border.log.delete_before(LOG, 70)
    assert await border.log.first_at(LOG, NOW_MS) == TimestampOffset(NOW_MS + 70, 70)


async def test_newest_timestamp_can_be_in_the_table(border: Border) -> None:
    falling = [Record(at, NOW_MS - at, 0, None, b"v") for at in range(40)]
    await border.append(falling)
    await border.move(falling[:20], 20)
    assert await border.log.newest_time(LOG) == TimestampOffset(NOW_MS, 0)
    await border.log.delete_before(LOG, 5)
    assert await border.log.newest_time(LOG) == TimestampOffset(NOW_MS - 5, 5)
    await border.log.delete_before(LOG, 25)
    assert await border.log.newest_time(LOG) == TimestampOffset(NOW_MS - 25, 25)


async def test_reads_of_the_table_have_no_aborted_transactions(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 20), 20)
    assert (await border.log.read(LOG, 0, ALL)).is_committed
    assert not (await border.log.read(LOG, 20, ALL)).is_committed


async def test_log_is_readable_when_the_table_is_not(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 20), 20)
    await border.lake.catalog.drop(LOG.topic_id)
    assert await border.log.bounds(LOG) == (0, 40, 40)
    with pytest.raises(Corrupt, match="was dropped"):
        await border.log.read(LOG, 0, ALL)
    assert await border.read(20, 40) == many(20, 40)
