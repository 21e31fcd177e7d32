"""Ranges, the probe, the meter, and calls together."""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from lakestream.clock import RandomIds
from lakestream.errors import Conflict, Misconfigured, Missing, Unavailable
from lakestream.model import Buffer, Span
from lakestream.storage.memory import MemoryStore
from lakestream.storage.metered import LATENCY_BOUNDS_MS, Meter, Metered, Operation, latency_bucket
from lakestream.storage.object_store import Body
from lakestream.storage.probe import Probe, check_clock, clock_offset_ms, probe
from lakestream.storage.ranges import Read, cut, plan_reads
from lakestream.storage.together import together
from lakestream.testing.object_faults import Faults, FaultyObjectStore
from lakestream.testing.simulation import SimClock, SimLoop, simulate


class FixedClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


# Ranges


def test_ranges_near_one_another_become_one_read() -> None:
    spans = [Span(100, 110), Span(0, 10), Span(15, 20), Span(105, 120)]
    assert plan_reads(spans, gap_bytes_max=5) == [Read(Span(0, 20), (1, 2)), Read(Span(100, 120), (0, 3))]
    assert plan_reads(spans, gap_bytes_max=80) == [Read(Span(0, 120), (1, 2, 0, 3))]
    assert plan_reads([]) == []


def test_any_ranges_are_cut_right() -> None:
    luck, whole = random.Random(5), bytes(range(256))
    for _ in range(300):
        bounds = [sorted((luck.randrange(257), luck.randrange(257))) for _ in range(luck.randrange(8))]
        spans = [Span(start, end) for start, end in bounds]
        answers: list[Buffer] = [b""] * len(spans)
        reads = plan_reads(spans, luck.randrange(60))
        for read in reads:
            cut(read, whole[read.span.start : read.span.end], spans, answers)
        assert [bytes(answer) for answer in answers] == [whole[span.start : span.end] for span in spans]
        assert all(left.span.end < right.span.start for left, right in pairwise(reads))


# The probe


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
def test_the_clock_offset_is_the_smallest_that_explains_the_date(
    before: int, after: int, modified: int, offset: int
) -> None:
    assert clock_offset_ms(before, after, modified) == offset


async def test_a_clock_over_a_minute_off_is_refused() -> None:
    ours, theirs = FixedClock(), FixedClock()
    for offset_ms, says in [(-61_000, "60 s ahead of"), (75_500, "75 s behind")]:
        theirs.now = ours.now + offset_ms
        found = await probe(MemoryStore(theirs), "s3://lake", ours, RandomIds())
        with pytest.raises(Misconfigured, match=rf"this machine's clock is {says} that of s3://lake: set it"):
            check_clock(found, "s3://lake")
    check_clock(Probe(60_000), "s3://lake")


class IgnoresCreateOnly(MemoryStore):
    async def create(self, key: str, body: Body) -> None:
        await self.put(key, body)


class Scrambles(MemoryStore):
    async def put(self, key: str, body: Body) -> None:
        await super().put(key, [b"x" * sum(map(len, body))])


class CannotRead(MemoryStore):
    async def get_ranges(self, key: str, spans: object) -> list[Buffer]:
        raise Misconfigured("no right to read")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (IgnoresCreateOnly, "ignores create-only writes"),
        (Scrambles, "gave back other bytes"),
        (CannotRead, "no right to read"),
    ],
)
async def test_a_store_that_would_not_do(kind: type[MemoryStore], says: str) -> None:
    clock = FixedClock()
    store = kind(clock)
    with pytest.raises(Misconfigured, match=says):
        await probe(store, "s3://lake", clock, RandomIds())
    assert [page async for page in store.walk("")] == []


# The meter


def test_latency_buckets() -> None:
    for took_ms, bound in [(0, 1), (0.4, 1), (1, 1), (1.01, 2), (2, 2), (3, 4), (4, 4), (5, 8), (1000, 1024)]:
        assert LATENCY_BOUNDS_MS[latency_bucket(took_ms / 1000)] == bound
    assert latency_bucket(1e6) == len(LATENCY_BOUNDS_MS)


def test_calls_bytes_and_latencies_are_counted() -> None:
    async def scenario(loop: SimLoop) -> None:
        meter = Meter()
        slow = FaultyObjectStore(MemoryStore(SimClock(loop)), random.Random(1), Faults(delay_ms=(100, 100)))
        store = Metered(slow, meter)
        await store.put("a/1", [b"12", b"345"])
        await store.create("a/2", [b"67"])
        with pytest.raises(Conflict):
            await store.create("a/2", [b"89"])
        with pytest.raises(Missing):
            await store.get("a/3")
        await store.get("a/1")
        await store.get_ranges("a/1", [Span(0, 2), Span(1, 2)])
        await store.head("a/1")
        assert [len(page) async for page in store.walk("a")] == [2]
        await store.delete(["a/1"])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.get("a/2")
        await store.close()

        found = meter.snapshot()
        assert {operation: (figures.calls, figures.bytes) for operation, figures in found.items()} == {
            Operation("put", "ok"): (1, 5),
            Operation("create", "ok"): (1, 2),
            Operation("create", "Conflict"): (1, 0),
            Operation("get", "Missing"): (1, 0),
            Operation("get", "ok"): (1, 5),
            Operation("get_ranges", "ok"): (1, 3),
            Operation("head", "ok"): (1, 0),
            Operation("walk", "ok"): (2, 0),  # the page, and the word that there is no other
            Operation("delete", "ok"): (1, 0),
            Operation("get", "CancelledError"): (1, 0),
        }
        put = found[Operation("put", "ok")]
        assert put.took_s == pytest.approx(0.1)
        assert put.latencies[latency_bucket(0.1)] == 1
        assert sum(put.latencies) == 1

    simulate(1, scenario)


# Together


async def test_together_keeps_order_and_bound() -> None:
    running = most = 0

    async def call(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return number

    assert await together([call(number) for number in range(20)], 4) == list(range(20))
    assert most == 4


async def test_the_first_error_is_raised_as_itself_and_ends_the_others() -> None:
    begun, ended = [], []

    async def slow() -> None:
        begun.append(True)
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fails() -> None:
        await asyncio.sleep(0.001)
        raise Unavailable("down")

    with pytest.raises(Unavailable, match="down"):
        await together([slow(), fails(), slow(), slow()], 2)
    assert 1 <= len(begun) == len(ended) < 3


# Faults


def test_a_late_write_arrives_with_the_bytes_that_were_sent() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryStore(SimClock(loop))
        store = FaultyObjectStore(inner, random.Random(1), Faults(late=1, late_ms=(1000, 1000)))
        buffer = bytearray(b"sent")
        with pytest.raises(Unavailable):
            await store.put("k", [buffer])
        buffer[:] = b"used again"
        with pytest.raises(Missing):
            await inner.get("k")
        await asyncio.sleep(1.1)
        assert await inner.get("k") == b"sent"
        await store.close()

    simulate(1, scenario)


async def _drain(pages: AsyncIterator[object]) -> None:
    async for _ in pages:
        pass


def test_faults_hit_every_call() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryStore(SimClock(loop))
        await inner.put("k", [b"x"])
        store = FaultyObjectStore(inner, random.Random(1), Faults(error_before=1))
        for call in (
            store.put("k", [b"y"]),
            store.create("n", [b"y"]),
            store.get("k"),
            store.get_ranges("k", [Span(0, 1)]),
            store.head("k"),
            store.delete(["k"]),
            _drain(store.walk("")),
        ):
            with pytest.raises(Unavailable, match="injected"):
                await call
        assert await inner.get("k") == b"x"
        store.faults = Faults(error_after=1)
        with pytest.raises(Unavailable, match="injected"):
            await store.put("k", [b"y"])
        assert await inner.get("k") == b"y"
        store.faults = Faults()
        await store.delete(["k"])

    simulate(1, scenario)


async def test_calls_that_never_began_are_put_away_when_it_is_cancelled() -> None:
    """Else Python would complain of them, at some later time and place."""
    calls = [asyncio.sleep(1) for _ in range(3)]
    task = asyncio.get_running_loop().create_task(together(calls, 1))
    await asyncio.sleep(0)
    task.cancel()  # before the tasks of the group had their first turn
    with pytest.raises(asyncio.CancelledError):
        await task
    assert {inspect.getcoroutinestate(call) for call in calls} == {inspect.CORO_CLOSED}
