"""The startup check finds clock offsets and stores that break a guarantee."""

import pytest

from lakestream.clock import RandomIds
from lakestream.errors import Misconfigured
from lakestream.model import Buffer
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import Body
from lakestream.storage.startup_check import StoreCheck, check_clock, check_store, clock_offset_ms


class FixedClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


@pytest.mark.parametrize(
    ("before", "after", "modified", "offset"),
    [
        (10_500, 10_700, 10_600, 0),
        (10_500, 10_700, 10_000, 0),  # whole seconds: written some time from 10.000 to 10.999
        (10_500, 10_700, 11_000, 300),
        (10_500, 10_700, 9_000, -501),
        (10_500, 10_700, 9_001, -1499),  # a store with milliseconds
        (100_000, 100_100, 170_000, 69_900),
    ],
)
def test_clock_offset_is_the_smallest_that_explains_the_modification_time(
    before: int, after: int, modified: int, offset: int
) -> None:
    assert clock_offset_ms(before, after, modified) == offset


async def test_startup_fails_when_the_clock_differs_by_more_than_a_minute() -> None:
    own, remote = FixedClock(), FixedClock()
    for offset_ms, message in [(-61_000, "60 s ahead of"), (75_500, "75 s behind")]:
        remote.now = own.now + offset_ms
        result = await check_store(MemoryObjectStore(remote), "s3://lake", own, RandomIds())
        with pytest.raises(Misconfigured, match=rf"this machine's clock is {message} that of s3://lake: set it"):
            check_clock(result, "s3://lake")
    check_clock(StoreCheck(60_000), "s3://lake")


class IgnoresCreateOnly(MemoryObjectStore):
    async def create(self, key: str, body: Body) -> None:
        await self.put(key, body)


class ReturnsOtherBytes(MemoryObjectStore):
    async def put(self, key: str, body: Body) -> None:
        await super().put(key, [b"x" * sum(map(len, body))])


class CannotRead(MemoryObjectStore):
    async def get_ranges(self, key: str, spans: object) -> list[Buffer]:
        raise Misconfigured("no permission to read")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (IgnoresCreateOnly, "ignores create-only writes"),
        (ReturnsOtherBytes, "returns other bytes"),
        (CannotRead, "no permission to read"),
    ],
)
async def test_startup_fails_when_the_store_breaks_a_guarantee(kind: type[MemoryObjectStore], message: str) -> None:
    clock = FixedClock()
    store = kind(clock)
    with pytest.raises(Misconfigured, match=message):
        await check_store(store, "s3://lake", clock, RandomIds())
    assert [page async for page in store.walk("")] == []
