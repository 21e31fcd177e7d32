"""A log whose first records are in the table: what is asked of it is answered across the border."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.unit.data.brokers import QUICK
from tests.unit.data.table.lakes import LOG, NOW_MS, Lake, many
from tests.unit.data.table.plain import Record, batch_of, read_batch

from lakestream.batch import RecordBatch
from lakestream.clock import SeededIds, SystemClock
from lakestream.data.log.log import Log
from lakestream.data.log.times import At
from lakestream.errors import Corrupt, OutOfRange
from lakestream.filed import as_bytes
from lakestream.metadata.claims import Claims
from lakestream.settings import Profile

ALL = 1 << 20


class Border:
    """One log, its table, a broker, and a pipeline by hand."""

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
        await self.claims.make_logs([LOG])
        await self.log.start()
        return self

    async def close(self) -> None:
        await self.log.close()
        await self.driver.close()
        await self.lake.close()

    async def append(self, records: list[Record]) -> None:
        """Ten to a batch."""
        for at in range(0, len(records), 10):
            await self.log.append(LOG, RecordBatch.parse(batch_of(records[at : at + 10])))

    async def move(self, records: list[Record], upto: int) -> None:
        """All before `upto` leaves the log; these become rows."""
        await self.lake.move(records, upto)
        await self.claims.advance_table_end(LOG, upto)
        await self.driver.trim(LOG, upto)
        if (view := self.log._views.known(LOG)) is not None:
            view.floor_seen_s -= 10  # time goes by

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


async def test_everything_is_read_as_if_there_were_no_border(border: Border) -> None:
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


async def test_the_tail_is_still_read_at_a_glance(border: Border) -> None:
    await border.append(many(0, 30))
    await border.move(many(0, 20), 20)
    await border.append(many(30, 40))
    assert border.log.glance(LOG, 30, ALL) is None  # after so long a time it looks first
    await border.read(30, 40)
    found = border.log.glance(LOG, 30, ALL)
    assert found is not None
    assert found.bounds == (0, 40, 40)
    assert border.log.glance(LOG, 5, ALL) is None


async def test_what_is_at_hand_still_is_not_served_when_it_was_deleted_from_the_table(border: Border) -> None:
    await border.append(many(0, 30))
    assert await border.read(0, 30) == many(0, 30)
    await border.move(many(10, 20), 20)
    assert await border.read(0, 30) == many(10, 30)


async def test_a_gap_is_passed_over_within_one_read(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 5), 20)
    found = await border.log.read(LOG, 7, ALL)
    assert found.batches[0][0] == 20
    assert await border.read(0, 40) == many(0, 5) + many(20, 40)


async def test_a_gap_that_is_the_end_is_a_batch_without_records(border: Border) -> None:
    await border.append(many(0, 20))
    await border.move(many(0, 5), 20)
    found = await border.log.read(LOG, 7, ALL)
    ((offset, pieces),) = found.batches
    assert (offset, found.offset_next, read_batch(as_bytes(pieces))) == (7, 20, [])
    assert (await border.log.read(LOG, 20, ALL)).batches == []
    await border.append(many(20, 30))
    assert (await border.log.read(LOG, 7, ALL)).batches[0][0] == 20


async def test_where_the_log_starts(border: Border) -> None:
    """At the pointer, or at the first row, or where the log itself begins."""
    await border.append(many(0, 40))
    await border.move(many(5, 10), 20)
    assert (await border.log.bounds(LOG)).start == 5
    assert border.log.start_known(LOG) == 5
    assert await border.log.delete_before(LOG, 8) == 8
    with pytest.raises(OutOfRange, match="before its start 8"):
        await border.log.read(LOG, 7, ALL)
    assert await border.read(8, 40) == many(8, 10) + many(20, 40)
    assert await border.log.delete_before(LOG, 25) == 25
    assert await border.read(25, 40) == many(25, 40)


async def test_a_table_without_rows_of_a_log(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move([], 20)
    assert (await border.log.bounds(LOG)).start == 20
    assert await border.read(0, 40) == many(20, 40)


async def test_times(border: Border) -> None:
    await border.append(many(0, 100))
    await border.move(many(0, 60), 60)
    for offset in (0, 30, 59, 60, 61, 99):
        assert await border.log.first_at(LOG, NOW_MS + offset) == At(NOW_MS + offset, offset)
    assert await border.log.first_at(LOG, NOW_MS + 100) is None
    assert await border.log.newest_time(LOG) == At(NOW_MS + 99, 99)
    await border.log.delete_before(LOG, 40)
    assert await border.log.first_at(LOG, NOW_MS) == At(NOW_MS + 40, 40)
    await border.log.delete_before(LOG, 70)
    assert await border.log.first_at(LOG, NOW_MS) == At(NOW_MS + 70, 70)


async def test_the_newest_time_is_in_the_table(border: Border) -> None:
    falling = [Record(at, NOW_MS - at, 0, None, b"v") for at in range(40)]
    await border.append(falling)
    await border.move(falling[:20], 20)
    assert await border.log.newest_time(LOG) == At(NOW_MS, 0)
    await border.log.delete_before(LOG, 5)
    assert await border.log.newest_time(LOG) == At(NOW_MS - 5, 5)
    await border.log.delete_before(LOG, 25)
    assert await border.log.newest_time(LOG) == At(NOW_MS - 25, 25)


async def test_nothing_in_the_table_was_aborted(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 20), 20)
    assert (await border.log.read(LOG, 0, ALL)).is_decided
    assert not (await border.log.read(LOG, 20, ALL)).is_decided


async def test_a_table_that_cannot_be_read_does_not_hide_the_rest_of_the_log(border: Border) -> None:
    await border.append(many(0, 40))
    await border.move(many(0, 20), 20)
    await border.lake.catalog.drop(LOG.topic_id)
    assert await border.log.bounds(LOG) == (0, 40, 40)
    with pytest.raises(Corrupt, match="was dropped"):
        await border.log.read(LOG, 0, ALL)
    assert await border.read(20, 40) == many(20, 40)
