"""Retries, on virtual time: which calls are retried, for how long, and the result of a create without a response."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from lakestream.errors import (
    Conflict,
    Corrupt,
    LakestreamError,
    Misconfigured,
    Missing,
    OutOfRange,
    Rejected,
    Unavailable,
    Uncertain,
)
from lakestream.model import MiB, Span
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import Body
from lakestream.storage.retrying import PATIENT, RetryBudget, RetryingStore, RetrySettings, pause_ms
from lakestream.testing.faulty_object_store import Faults, FaultyObjectStore
from lakestream.testing.simulation import SimClock, SimLoop, simulate

T = TypeVar("T")
OWN, OTHER = [b"mi", b"ne"], [b"they"]

Step = LakestreamError | str
"""Outcome of one call: an error without an effect, or one of the constants below."""
OK, LOST, HANGS, HANGS_AFTER, OTHER_CREATES_FIRST = "ok", "lost", "hangs", "hangs after", "other creates first"


class Scripted(MemoryObjectStore):
    """A store whose writes follow a script, one step per call, and succeed after its end."""

    def __init__(self, loop: SimLoop, *steps: Step) -> None:
        super().__init__(SimClock(loop))
        self.steps = list(steps)
        self.calls = 0

    async def put(self, key: str, body: Body) -> None:
        await self._step(lambda: super(Scripted, self).put(key, body), key)

    async def create(self, key: str, body: Body) -> None:
        # Not super().create: that would go through the scripted put.
        async def create() -> None:
            if key in self._objects:
                raise Conflict(f"object {key} already exists")
            await super(Scripted, self).put(key, body)

        await self._step(create, key)

    async def _step(self, effect: Callable[[], Awaitable[None]], key: str) -> None:
        self.calls += 1
        step = self.steps.pop(0) if self.steps else OK
        if isinstance(step, LakestreamError):
            raise step
        if step == HANGS:
            await asyncio.sleep(3600)
        if step == OTHER_CREATES_FIRST:
            await super().put(key, OTHER)
            raise Uncertain("no response")
        await effect()
        if step == LOST:
            raise Uncertain("no response")
        if step == HANGS_AFTER:
            await asyncio.sleep(3600)


def retried(store: FaultyObjectStore | MemoryObjectStore, **settings: Any) -> RetryingStore:
    return RetryingStore(store, RetrySettings(**settings), random.Random(1))


def run(scenario: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    return simulate(1, scenario)


def test_unavailable_is_retried() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, Unavailable("down"), LOST, Unavailable("down"))
        await retried(store).put("k", OWN)
        assert store.calls == 4
        assert await store.get("k") == b"mine"

    run(scenario)


def test_patient_calls_wait_for_a_store_that_responds_after_ten_seconds() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = FaultyObjectStore(
            MemoryObjectStore(SimClock(loop)), random.Random(3), Faults(delay_ms=(10_000, 10_000))
        )
        await RetryingStore(store, PATIENT, random.Random(1)).put("k", OWN)
        assert loop.now == 10
        with pytest.raises(Uncertain, match="gave up"):
            await retried(store).put("k", OWN)

    run(scenario)


@pytest.mark.parametrize("kind", [Misconfigured, Rejected, Conflict, Missing, Corrupt, OutOfRange])
def test_permanent_errors_are_not_retried(kind: type[LakestreamError]) -> None:
    async def scenario(loop: SimLoop) -> None:
        for write in ("put", "create"):
            store = Scripted(loop, kind("wrong"))
            with pytest.raises(kind, match=r"^wrong$"):
                await getattr(retried(store), write)("k", OWN)
            assert (store.calls, loop.now) == (1, 0)

    run(scenario)


def test_reads_are_retried_and_a_walk_continues_after_its_last_key() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryObjectStore(SimClock(loop))
        names = [f"a/{number:05d}" for number in range(3500)]
        for name in names:
            await inner.put(name, [name.encode()])
        rng = random.Random(3)
        store = retried(FaultyObjectStore(inner, rng, Faults(error_before=0.5, delay_ms=(0, 100))), budget_per_s=100)
        assert [info.key async for page in store.walk("a") for info in page] == names
        for name in names[:50]:
            assert await store.get(name) == name.encode()
            assert await store.get_ranges(name, [Span(0, 1)]) == [b"a"]
            assert (await store.head(name)).size == 7
        await store.delete(names)
        assert [page async for page in store.walk("")] == []

    run(scenario)


def test_walk_can_be_closed_before_its_end() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = MemoryObjectStore(SimClock(loop))
        await store.put("a/1", [b"x"])
        walk = retried(store).walk("a")
        assert [info.key for info in await anext(walk)] == ["a/1"]
        await walk.aclose()  # type: ignore[attr-defined]

    run(scenario)


# Time


def test_attempt_that_hangs_times_out_and_is_retried() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, HANGS)
        await retried(store, try_timeout_ms=5000).put("k", OWN)
        assert 5.0 < loop.now < 5.2
        assert store.calls == 2

    run(scenario)


def test_deadline_limits_all_attempts_together() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *[HANGS] * 100)
        with pytest.raises(Uncertain, match=r"no response within \d\.\d s \(gave up after \d attempts in 30\.\d s\)"):
            await retried(store, try_timeout_ms=5000, deadline_ms=30_000).put("k", OWN)
        assert 29 < loop.now <= 30.01
        with pytest.raises(Unavailable, match=r"down \(gave up after \d+ attempts") as raised:
            await retried(Scripted(loop, *[Unavailable("down")] * 100)).put("k", OWN)
        assert not isinstance(raised.value, Uncertain)
        assert loop.now <= 60.01

    run(scenario)


def test_timeout_of_an_attempt_grows_with_the_body() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, HANGS)
        await retried(store, try_timeout_ms=5000, bytes_per_s_min=MiB).put("k", [bytes(4 * MiB)])
        assert 9.0 < loop.now < 9.2

    run(scenario)


def test_deadline_shorter_than_an_attempt_is_kept() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(Uncertain):
            await retried(Scripted(loop, HANGS), try_timeout_ms=5000, deadline_ms=1500).put("k", OWN)
        assert 1.5 <= loop.now < 1.51

    run(scenario)


def test_pauses_double_up_to_a_maximum_with_jitter() -> None:
    settings, rng = RetrySettings(pause_ms_first=50, pause_ms_max=2000), random.Random(1)
    for tries, longest in [(1, 50), (2, 100), (3, 200), (6, 1600), (7, 2000), (500, 2000)]:
        pauses = [pause_ms(tries, settings, rng) for _ in range(200)]
        assert longest / 2 <= min(pauses) < longest * 0.6 < longest * 0.9 < max(pauses) <= longest


def test_cancelled_call_ends_immediately() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await retried(Scripted(loop, HANGS)).put("k", OWN)
        assert loop.now == 1

    run(scenario)


# Retry budget


def test_retry_budget_is_a_share_of_the_calls() -> None:
    budget = RetryBudget(per_call=0.25, per_s=0, burst=10)
    assert [budget.take(0) for _ in range(11)] == [True] * 10 + [False]
    for _ in range(8):
        budget.record_call()
    assert [budget.take(0) for _ in range(3)] == [True, True, False]


def test_retry_budget_grows_with_time_up_to_its_burst() -> None:
    budget = RetryBudget(per_call=0.2, per_s=1, burst=3)
    assert [budget.take(100) for _ in range(4)] == [True, True, True, False]
    assert [budget.take(102), budget.take(102), budget.take(102)] == [True, True, False]
    for _ in range(1000):
        budget.record_call()
    assert [budget.take(9999) for _ in range(4)] == [True, True, True, False]


def test_retries_are_limited_during_an_outage() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *[Unavailable("down")] * 100_000)
        retrying = retried(store, budget_per_call=0.2, budget_per_s=1, budget_burst=10)

        async def caller() -> None:
            for _ in range(50):
                with pytest.raises(Unavailable, match=r"too many calls fail|gave up"):
                    await retrying.put("k", OWN)
                await asyncio.sleep(0.1)

        await asyncio.gather(*(caller() for _ in range(20)))
        assert store.calls <= 1000 * 1.2 + 10 + loop.now + 1

    run(scenario)


# Create


@pytest.mark.parametrize("steps", [[LOST], [HANGS_AFTER], [Unavailable("down"), LOST]], ids=str)
def test_create_succeeds_when_an_attempt_without_response_took_effect(steps: Sequence[Step]) -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *steps)
        await retried(store).create("k", OWN)
        assert store.calls == len(steps)
        assert await store.get("k") == b"mine"

    run(scenario)


@pytest.mark.parametrize("steps", [[Uncertain("no response")], [HANGS], [Unavailable("down")]], ids=str)
def test_create_is_retried_when_it_had_no_effect(steps: Sequence[Step]) -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *steps)
        await retried(store).create("k", OWN)
        assert store.calls == 2
        assert await store.get("k") == b"mine"

    run(scenario)


def test_create_conflicts_when_another_writer_was_first() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, OTHER_CREATES_FIRST)
        with pytest.raises(Conflict):
            await retried(store).create("k", OWN)
        assert await store.get("k") == b"they"
        await store.delete(["k"])
        await store.put("k", [b"mines"])
        with pytest.raises(Conflict):
            await retried(store).create("k", OWN)

    run(scenario)


def test_create_conflicts_with_equal_bytes_at_the_first_attempt() -> None:
    """Only an earlier attempt without a response could have created the object."""

    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop)
        await store.put("k", OWN)
        with pytest.raises(Conflict):
            await retried(store).create("k", OWN)

    run(scenario)


class FirstCreateIsLate(MemoryObjectStore):
    """The first create takes effect only after the second was sent: the read in between finds no object."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(SimClock(loop))
        self.calls = 0

    async def create(self, key: str, body: Body) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Uncertain("no response")
        if self.calls == 2:
            await self.put(key, body)
        await super().create(key, body)


def test_create_succeeds_when_its_first_attempt_arrives_after_the_second() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = FirstCreateIsLate(loop)
        await retried(store).create("k", OWN)
        assert store.calls == 2
        assert await store.get("k") == b"mine"

    run(scenario)


class Unreadable(Scripted):
    """Reads fail, too."""

    async def head(self, key: str) -> Any:
        raise Unavailable("cannot read")


def test_create_is_uncertain_when_the_object_cannot_be_read() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(Uncertain, match="gave up"):
            await retried(Unreadable(loop, *[Uncertain("no response")] * 100)).create("k", OWN)
        # The second attempt conflicts, and the read that would explain it fails.
        with pytest.raises(Uncertain, match="k: created by this writer or by another one"):
            await retried(Unreadable(loop, LOST)).create("k", OWN)

    run(scenario)


@pytest.mark.parametrize("seed", range(30))
def test_create_reports_the_true_outcome_under_every_fault(seed: int) -> None:
    """Success: the object has the caller's bytes. Conflict: those of another caller. Uncertain: either."""

    async def scenario(loop: SimLoop) -> None:
        inner = MemoryObjectStore(SimClock(loop))
        rng = random.Random(seed)
        faults = Faults(error_before=0.2, error_after=0.2, late=0.1, late_ms=(0, 3000), delay_ms=(0, 200), stall=0.05)
        network = FaultyObjectStore(inner, rng, faults)
        stores = [RetryingStore(network, RetrySettings(budget_per_s=50), random.Random(seed + n)) for n in range(3)]

        async def create(number: int, key: str) -> tuple[int, BaseException | None]:
            try:
                await stores[number].create(key, [b"creator ", str(number).encode()])
            except LakestreamError as error:
                return number, error
            return number, None

        for round_number in range(30):
            key = f"k/{round_number}"
            outcomes = await asyncio.gather(*(create(number, key) for number in range(3)))
            winners = [number for number, error in outcomes if error is None]
            assert len(winners) <= 1, outcomes
            if winners:
                assert await inner.get(key) == b"creator %d" % winners[0]
            for _, error in outcomes:
                assert error is None or isinstance(error, Conflict | Unavailable)
        await network.close()

    simulate(seed, scenario)
