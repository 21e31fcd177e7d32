"""Retrying, on virtual time: what is tried again, for how long, and what a create makes of a lost answer."""

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
from lakestream.storage.budget import RetryBudget
from lakestream.storage.memory import MemoryStore
from lakestream.storage.object_store import Body
from lakestream.storage.retrying import Retrying, RetrySettings, pause_ms
from lakestream.testing.object_faults import Faults, FaultyObjectStore
from lakestream.testing.simulation import SimClock, SimLoop, simulate

T = TypeVar("T")
MINE, THEIRS = [b"mi", b"ne"], [b"they"]

Step = LakestreamError | str
"""What happens at one call: an error before anything was done, or one of the words below."""
OK, LOST, HANGS, HANGS_AFTER, THEY_CREATE_FIRST = "ok", "lost", "hangs", "hangs after", "they create first"


class Scripted(MemoryStore):
    """A store whose writes do what the script says, one step per call, and work when the script is over."""

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
                raise Conflict(f"object {key} exists already")
            await super(Scripted, self).put(key, body)

        await self._step(create, key)

    async def _step(self, effect: Callable[[], Awaitable[None]], key: str) -> None:
        self.calls += 1
        step = self.steps.pop(0) if self.steps else OK
        if isinstance(step, LakestreamError):
            raise step
        if step == HANGS:
            await asyncio.sleep(3600)
        if step == THEY_CREATE_FIRST:
            await super().put(key, THEIRS)
            raise Uncertain("no answer")
        await effect()
        if step == LOST:
            raise Uncertain("no answer")
        if step == HANGS_AFTER:
            await asyncio.sleep(3600)


def retried(store: FaultyObjectStore | MemoryStore, **settings: Any) -> Retrying:
    return Retrying(store, RetrySettings(**settings), random.Random(1))


def run(scenario: Callable[[SimLoop], Coroutine[Any, Any, T]]) -> T:
    return simulate(1, scenario)


def test_what_is_unavailable_is_tried_again() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, Unavailable("down"), LOST, Unavailable("down"))
        await retried(store).put("k", MINE)
        assert store.calls == 4
        assert await store.get("k") == b"mine"

    run(scenario)


@pytest.mark.parametrize("kind", [Misconfigured, Rejected, Conflict, Missing, Corrupt, OutOfRange])
def test_what_is_wrong_is_not_tried_again(kind: type[LakestreamError]) -> None:
    async def scenario(loop: SimLoop) -> None:
        for write in ("put", "create"):
            store = Scripted(loop, kind("wrong"))
            with pytest.raises(kind, match=r"^wrong$"):
                await getattr(retried(store), write)("k", MINE)
            assert (store.calls, loop.now) == (1, 0)

    run(scenario)


def test_reads_are_tried_again_and_a_walk_goes_on_where_it_broke() -> None:
    async def scenario(loop: SimLoop) -> None:
        inner = MemoryStore(SimClock(loop))
        names = [f"a/{number:05d}" for number in range(3500)]
        for name in names:
            await inner.put(name, [name.encode()])
        luck = random.Random(3)
        store = retried(FaultyObjectStore(inner, luck, Faults(error_before=0.5, delay_ms=(0, 100))), budget_per_s=100)
        assert [info.key async for page in store.walk("a") for info in page] == names
        for name in names[:50]:
            assert await store.get(name) == name.encode()
            assert await store.get_ranges(name, [Span(0, 1)]) == [b"a"]
            assert (await store.head(name)).size == 7
        await store.delete(names)
        assert [page async for page in store.walk("")] == []

    run(scenario)


def test_a_walk_that_is_left_early_is_closed() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = MemoryStore(SimClock(loop))
        await store.put("a/1", [b"x"])
        walk = retried(store).walk("a")
        assert [info.key for info in await anext(walk)] == ["a/1"]
        await walk.aclose()  # type: ignore[attr-defined]

    run(scenario)


# Time


def test_a_try_that_hangs_is_given_up_and_made_again() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, HANGS)
        await retried(store, try_timeout_ms=5000).put("k", MINE)
        assert 5.0 < loop.now < 5.2
        assert store.calls == 2

    run(scenario)


def test_the_deadline_bounds_all_tries_together() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *[HANGS] * 100)
        with pytest.raises(Uncertain, match=r"no answer within \d\.\d s \(gave up after \d tries in 30\.\d s\)"):
            await retried(store, try_timeout_ms=5000, deadline_ms=30_000).put("k", MINE)
        assert 29 < loop.now <= 30.01
        with pytest.raises(Unavailable, match=r"down \(gave up after \d+ tries") as raised:
            await retried(Scripted(loop, *[Unavailable("down")] * 100)).put("k", MINE)
        assert not isinstance(raised.value, Uncertain)
        assert loop.now <= 60.01

    run(scenario)


def test_a_large_body_gets_more_time() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, HANGS)
        await retried(store, try_timeout_ms=5000, bytes_per_s_min=MiB).put("k", [bytes(4 * MiB)])
        assert 9.0 < loop.now < 9.2

    run(scenario)


def test_a_deadline_shorter_than_a_try_holds() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(Uncertain):
            await retried(Scripted(loop, HANGS), try_timeout_ms=5000, deadline_ms=1500).put("k", MINE)
        assert 1.5 <= loop.now < 1.51

    run(scenario)


def test_pauses_double_up_to_a_bound_and_are_spread() -> None:
    settings, luck = RetrySettings(pause_ms_first=50, pause_ms_max=2000), random.Random(1)
    for tries, longest in [(1, 50), (2, 100), (3, 200), (6, 1600), (7, 2000), (500, 2000)]:
        pauses = [pause_ms(tries, settings, luck) for _ in range(200)]
        assert longest / 2 <= min(pauses) < longest * 0.6 < longest * 0.9 < max(pauses) <= longest


def test_a_caller_who_leaves_is_let_go() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await retried(Scripted(loop, HANGS)).put("k", MINE)
        assert loop.now == 1

    run(scenario)


# The budget


def test_the_budget_is_a_share_of_the_calls() -> None:
    budget = RetryBudget(per_call=0.25, per_s=0, burst=10)
    assert [budget.take(0) for _ in range(11)] == [True] * 10 + [False]
    for _ in range(8):
        budget.note_call()
    assert [budget.take(0) for _ in range(3)] == [True, True, False]


def test_the_budget_grows_with_time_and_never_beyond_its_burst() -> None:
    budget = RetryBudget(per_call=0.2, per_s=1, burst=3)
    assert [budget.take(100) for _ in range(4)] == [True, True, True, False]
    assert [budget.take(102), budget.take(102), budget.take(102)] == [True, True, False]
    for _ in range(1000):
        budget.note_call()
    assert [budget.take(9999) for _ in range(4)] == [True, True, True, False]


def test_an_outage_is_not_amplified() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *[Unavailable("down")] * 100_000)
        retrying = retried(store, budget_per_call=0.2, budget_per_s=1, budget_burst=10)

        async def caller() -> None:
            for _ in range(50):
                with pytest.raises(Unavailable, match=r"too many calls are failing|gave up"):
                    await retrying.put("k", MINE)
                await asyncio.sleep(0.1)

        await asyncio.gather(*(caller() for _ in range(20)))
        assert store.calls <= 1000 * 1.2 + 10 + loop.now + 1

    run(scenario)


# Create


@pytest.mark.parametrize("steps", [[LOST], [HANGS_AFTER], [Unavailable("down"), LOST]], ids=str)
def test_a_create_that_took_effect_is_recognised(steps: Sequence[Step]) -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *steps)
        await retried(store).create("k", MINE)
        assert store.calls == len(steps)
        assert await store.get("k") == b"mine"

    run(scenario)


@pytest.mark.parametrize("steps", [[Uncertain("no answer")], [HANGS], [Unavailable("down")]], ids=str)
def test_a_create_that_took_no_effect_is_made_again(steps: Sequence[Step]) -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, *steps)
        await retried(store).create("k", MINE)
        assert store.calls == 2
        assert await store.get("k") == b"mine"

    run(scenario)


def test_a_key_that_others_took_meanwhile_is_a_conflict() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop, THEY_CREATE_FIRST)
        with pytest.raises(Conflict):
            await retried(store).create("k", MINE)
        assert await store.get("k") == b"they"
        await store.delete(["k"])
        await store.put("k", [b"mines"])
        with pytest.raises(Conflict):
            await retried(store).create("k", MINE)

    run(scenario)


def test_equal_bytes_at_the_first_try_are_still_a_conflict() -> None:
    """Only a try of ours without an answer can have made the object ours."""

    async def scenario(loop: SimLoop) -> None:
        store = Scripted(loop)
        await store.put("k", MINE)
        with pytest.raises(Conflict):
            await retried(store).create("k", MINE)

    run(scenario)


class Late(MemoryStore):
    """The first create is heard of only after the second was sent: the look in between finds nothing."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(SimClock(loop))
        self.calls = 0

    async def create(self, key: str, body: Body) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Uncertain("no answer")
        if self.calls == 2:
            await self.put(key, body)
        await super().create(key, body)


def test_a_create_that_arrives_late_is_met_by_the_next_try() -> None:
    async def scenario(loop: SimLoop) -> None:
        store = Late(loop)
        await retried(store).create("k", MINE)
        assert store.calls == 2
        assert await store.get("k") == b"mine"

    run(scenario)


class Blind(Scripted):
    """Reads fail too."""

    async def head(self, key: str) -> Any:
        raise Unavailable("cannot look")


def test_a_create_that_cannot_be_resolved_is_uncertain() -> None:
    async def scenario(loop: SimLoop) -> None:
        with pytest.raises(Uncertain, match="gave up"):
            await retried(Blind(loop, *[Uncertain("no answer")] * 100)).create("k", MINE)
        # The second try is refused, by whom cannot be seen.
        with pytest.raises(Uncertain, match="whether we created k or somebody else"):
            await retried(Blind(loop, LOST)).create("k", MINE)

    run(scenario)


@pytest.mark.parametrize("seed", range(30))
def test_under_every_fault_a_create_tells_the_truth(seed: int) -> None:
    """Success: our bytes are there. Conflict: somebody else's are. Uncertain: nobody knows."""

    async def scenario(loop: SimLoop) -> None:
        inner = MemoryStore(SimClock(loop))
        luck = random.Random(seed)
        faults = Faults(error_before=0.2, error_after=0.2, late=0.1, late_ms=(0, 3000), delay_ms=(0, 200), stall=0.05)
        network = FaultyObjectStore(inner, luck, faults)
        stores = [Retrying(network, RetrySettings(budget_per_s=50), random.Random(seed + n)) for n in range(3)]

        async def create(number: int, key: str) -> tuple[int, BaseException | None]:
            try:
                await stores[number].create(key, [b"creator ", str(number).encode()])
            except LakestreamError as error:
                return number, error
            return number, None

        for round_number in range(30):
            key = f"k/{round_number}"
            answers = await asyncio.gather(*(create(number, key) for number in range(3)))
            winners = [number for number, error in answers if error is None]
            assert len(winners) <= 1, answers
            if winners:
                assert await inner.get(key) == b"creator %d" % winners[0]
            for _, error in answers:
                assert error is None or isinstance(error, Conflict | Unavailable)
        await network.close()

    simulate(seed, scenario)


def test_faults_are_the_same_for_the_same_seed() -> None:
    def history(seed: int) -> list[str]:
        async def scenario(loop: SimLoop) -> list[str]:
            faults = Faults(error_before=0.2, error_after=0.2, late=0.1, delay_ms=(0, 50), stall=0.05)
            store = FaultyObjectStore(MemoryStore(SimClock(loop)), random.Random(seed), faults)
            lines = []
            for number in range(100):
                try:
                    await store.put(f"k/{number}", [b"x"])
                    lines.append(f"{loop.now:.6f} ok")
                except Unavailable as error:
                    lines.append(f"{loop.now:.6f} {error}")
            await store.close()
            return lines

        return simulate(seed, scenario)

    assert history(1) == history(1) != history(2)
    assert any("no answer" in line for line in history(1))
