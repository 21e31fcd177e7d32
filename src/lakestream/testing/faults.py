"""Seeded faults on every call that leaves a simulated machine.

A call crosses a `Line` from its machine to a store. What becomes of it is drawn from the seed: it may be slow, refused,
lost on the way there (nothing happened) or back (it took effect, nobody heard), or *late*: the caller hears that the
outcome is uncertain, and the call takes effect seconds or hours later. A line may also stall or kill its machine
between any two steps. A call that is on its way is the world's: it arrives although its sender stalls or dies.

Stores behind a line answer at once and never wait, so every call takes effect at one instant of virtual time.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from lakestream.clock import Clock
from lakestream.data.wal.segments import See, SegmentInfo
from lakestream.errors import Conflict, LakestreamError, Missing, Unavailable, Uncertain
from lakestream.filed import OpenFile
from lakestream.metadata.memory import MemoryServer, MemoryStore
from lakestream.metadata.store import (
    ANY,
    Changes,
    Create,
    Created,
    Folder,
    Key,
    Put,
    Record,
    Scanned,
    Session,
    Stored,
)
from lakestream.model import Buffer, Span
from lakestream.storage.object_store import Body, ObjectInfo, ObjectStore
from lakestream.testing.memory_segments import MemoryDisk, MemorySegment, MemorySegments
from lakestream.testing.simulation import Machine, SimLoop

T = TypeVar("T")

HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """How often what goes wrong: chances per call, and how long it takes then."""

    slow: float = 0.0
    refused: float = 0.0
    lost_there: float = 0.0
    lost_back: float = 0.0
    late: float = 0.0
    stall: float = 0.0
    kill: float = 0.0
    repeats: float = 0.5
    """Of creates without a clear answer: the store's client sends them again by itself, as the one for Oxia does."""
    stale_read: float = 0.9
    """Of reads while the leader that this machine talks to is deposed."""
    event_lost: float = 0.0
    event_doubled: float = 0.0
    events_made_up_s_max: float | None = None
    """After a lost event, the stream says "look at everything" within this time, as real stores' streams do; else
    never."""
    watch_broken: float = 0.0
    latency_s: float = 0.004
    slow_s_max: float = 20.0
    deadline_s: float = 5.0
    late_s_max: float = 10 * HOUR
    stall_s_min: float = 0.05
    stall_s_max: float = 10 * HOUR


CALM = Weather()
REPEAT_S_MAX = 10.0


class Fate(IntEnum):
    """What becomes of a call."""

    ARRIVES = 0
    SLOW = 1
    REFUSED = 2
    LOST_THERE = 3
    LOST_BACK = 4
    LATE = 5
    STALL_BEFORE = 6
    STALL_AFTER = 7
    KILL_BEFORE = 8
    KILL_MEANWHILE = 9
    KILL_AFTER = 10


def spread(luck: random.Random, low: float, high: float) -> float:
    """A duration somewhere between, every order of magnitude as likely as the next."""
    return float(low * (high / low) ** luck.random())


class Line:
    """The way from one machine to one store, and back."""

    def __init__(self, loop: SimLoop, machine: Machine, name: str, weather: Weather, tally: Counter[str]) -> None:
        self.machine = machine
        self.weather = weather
        self.loop = loop
        self.tally = tally
        self._name = name
        self._luck = loop.luck

    async def cross(self, what: str, effect: Callable[[], T], *, writes: bool) -> T:
        """Send a call, wait for its answer. `effect` is what it does when it arrives, at once."""
        if not self.machine.alive:
            raise Unavailable(f"{self._name}: this machine is dead")
        fate = self._draw()
        self._note(what, fate)
        there_s, back_s = self._delays(fate)
        answer: asyncio.Future[T] = self.loop.create_future()
        if fate is Fate.STALL_BEFORE:
            there_s += self._stall()
        elif fate is Fate.KILL_MEANWHILE:
            self.loop.after(0.0, self.machine.kill)
        elif fate is Fate.KILL_BEFORE:
            self.loop.after(0.0, self.machine.kill)
            return await answer  # never
        self.loop.after(there_s, self._arrive, _Call(what, effect, writes, fate, back_s), answer)
        return await answer

    async def halt(self, what: str, *, refuses: bool = True) -> None:
        """A step of the machine itself: it may be slow, refused, or the last for a while, or for ever."""
        if not self.machine.alive:
            raise Unavailable(f"{self._name}: this machine is dead")
        fate = self._draw()
        if Fate.LOST_THERE <= fate <= Fate.LATE or (fate is Fate.REFUSED and not refuses):
            fate = Fate.ARRIVES
        if fate is Fate.ARRIVES:
            return
        self._note(what, fate)
        if fate is Fate.SLOW:
            await asyncio.sleep(sum(self._delays(fate)))
        elif fate is Fate.REFUSED:
            raise self.unavailable(what)
        elif fate in (Fate.STALL_BEFORE, Fate.STALL_AFTER):
            self._stall()
            await asyncio.sleep(0)
        else:
            self.loop.after(self.delay() if fate is Fate.KILL_MEANWHILE else 0.0, self.machine.kill)
            await asyncio.sleep(0 if fate is Fate.KILL_MEANWHILE else 1.0)

    def draw_items(self, count: int) -> list[Fate]:
        """For calls that carry many items: what becomes of each one, besides what becomes of the call."""
        fates = [self._draw() for _ in range(count)]
        return [fate if Fate.REFUSED <= fate <= Fate.LATE else Fate.ARRIVES for fate in fates]

    def late(self, effect: Callable[[], object]) -> None:
        """Have it take effect when nobody thinks of it any more."""
        seconds = spread(self._luck, self.weather.deadline_s, self.weather.late_s_max)
        self.loop.late_until = max(self.loop.late_until, self.loop.now + seconds)
        self.loop.after(seconds, _ignoring_errors, effect)

    def uncertain(self, what: str) -> Uncertain:
        return Uncertain(f"{self._name}: no answer to {what} in {self.weather.deadline_s} s; it may have taken effect")

    def unavailable(self, what: str) -> Unavailable:
        return Unavailable(f"{self._name}: cannot answer {what} now")

    def chance(self, probability: float) -> bool:
        return probability > 0 and self._luck.random() < probability

    def delay(self) -> float:
        return self.weather.latency_s * (0.2 + 1.6 * self._luck.random())

    def _draw(self) -> Fate:
        weather = self.weather
        if weather is CALM:
            return Fate.ARRIVES
        point = self._luck.random()
        for fate, chance in (
            (Fate.SLOW, weather.slow),
            (Fate.REFUSED, weather.refused),
            (Fate.LOST_THERE, weather.lost_there),
            (Fate.LOST_BACK, weather.lost_back),
            (Fate.LATE, weather.late),
            (Fate.STALL_BEFORE, weather.stall / 2),
            (Fate.STALL_AFTER, weather.stall / 2),
            (Fate.KILL_BEFORE, weather.kill / 3),
            (Fate.KILL_MEANWHILE, weather.kill / 3),
            (Fate.KILL_AFTER, weather.kill / 3),
        ):
            if point < chance:
                return fate
            point -= chance
        return Fate.ARRIVES

    def _note(self, what: str, fate: Fate) -> None:
        if fate is not Fate.ARRIVES:
            self.tally[f"{self._name} {fate.name.lower().replace('_', ' ')}"] += 1
        self.loop.trace.note(self.loop.now, self.machine.name, what, fate.name)

    def _delays(self, fate: Fate) -> tuple[float, float]:
        if fate is not Fate.SLOW:
            return self.delay(), self.delay()
        # Slow, but in time: what takes longer than the deadline is lost or late.
        seconds = spread(self._luck, self.weather.latency_s, min(self.weather.slow_s_max, self.weather.deadline_s))
        return (seconds, self.delay()) if self._luck.random() < 0.5 else (self.delay(), seconds)

    def _stall(self) -> float:
        seconds = spread(self._luck, self.weather.stall_s_min, self.weather.stall_s_max)
        self.machine.pause(seconds, with_clocks=self._luck.random() < 0.3)
        return seconds

    def _arrive(self, call: "_Call", answer: Any) -> None:
        fate, deadline_s = call.fate, self.weather.deadline_s
        silence = self.uncertain(call.what) if call.writes else self.unavailable(call.what)
        if fate is Fate.REFUSED:
            self.loop.after(call.back_s, _fail, answer, self.unavailable(call.what))
        elif fate is Fate.LOST_THERE or (fate is Fate.LATE and not call.writes):
            self.loop.after(deadline_s, _fail, answer, silence)
        elif fate is Fate.LATE:
            self.late(call.effect)
            self.loop.after(deadline_s, _fail, answer, silence)
        elif fate is Fate.LOST_BACK:
            _ignoring_errors(call.effect)
            self.loop.after(deadline_s, _fail, answer, silence)
        else:
            self._answer(call, answer)

    def _answer(self, call: "_Call", answer: Any) -> None:
        try:
            result = call.effect()
        except LakestreamError as error:
            self.loop.after(call.back_s, _fail, answer, error)
        else:
            self.loop.after(call.back_s, _succeed, answer, result)
        if call.fate is Fate.KILL_AFTER:
            self.machine.kill()
        elif call.fate is Fate.STALL_AFTER:
            self._stall()


class _Call(NamedTuple):
    what: str
    effect: Callable[[], Any]
    writes: bool
    fate: Fate
    back_s: float


def _fail(answer: Any, error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _succeed(answer: Any, result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _ignoring_errors(effect: Callable[[], object]) -> None:
    try:
        effect()
    except LakestreamError:
        return  # nobody is there any more to hear it


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise AssertionError("a store behind a line must not wait")


class FaultyMetadata:
    """The metadata store as one machine sees it."""

    def __init__(self, server: MemoryServer, line: Line) -> None:
        self._newest = server.client()
        self._line = line
        self._deposed: MemoryStore | None = None
        self._deposed_until = 0.0
        # The server notices that a dead or paused machine is silent; the timer must not die or pause with it.
        line.machine.on_death.append(lambda: line.loop.after(0.0, self._newest.silence))
        line.machine.on_pause.append(lambda: line.loop.after(0.0, self._newest.silence))
        line.machine.on_resume.append(lambda: line.loop.after(0.0, self._newest.speak))

    def depose(self, snapshot: MemoryServer, seconds: float) -> None:
        """For so long, reads may be answered by a leader that does not know that it is none any more: all that was true
        when it was deposed, and nothing since. Its answers are never those to a write or to a confirmed read."""
        self._deposed = snapshot.client()
        self._deposed_until = self._line.loop.now + seconds

    def _node(self, confirmed: bool) -> MemoryStore:
        if self._deposed is None or confirmed:
            return self._newest
        if self._line.loop.now >= self._deposed_until:
            self._deposed = None
            return self._newest
        if not self._line.chance(self._line.weather.stale_read):
            return self._newest
        self._line.tally["metadata stale read"] += 1
        return self._deposed

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await self._line.cross(f"get {key.path}", lambda: at_once(self._node(confirmed).get(key)), writes=False)

    async def floor(self, folder: Folder, name: str) -> Record | None:
        return await self._line.cross(
            f"floor {folder.path} {name}", lambda: at_once(self._node(False).floor(folder, name)), writes=False
        )

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        return await self._line.cross(
            f"ceiling {folder.path} {name}", lambda: at_once(self._node(False).ceiling(folder, name)), writes=False
        )

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        def effect() -> Scanned:
            return at_once(self._node(confirmed).scan(folder, start, end, limit=limit, guard=guard))

        return await self._line.cross(f"scan {folder.path} {start}..{end}", effect, writes=False)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        def effect(put: Put) -> Stored | Conflict | Missing | Unavailable:
            return at_once(self._newest.put([put]))[0]

        return await self._each("put", puts, effect)

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        def effect(create: Create) -> Created | Conflict | Unavailable:
            return at_once(self._newest.create([create]))[0]

        answers = await self._each("create", creates, effect)
        doubtful = [number for number, answer in enumerate(answers) if isinstance(answer, Uncertain)]
        if not doubtful or not self._line.chance(self._line.weather.repeats):
            return answers
        self._line.tally["metadata repeated by itself"] += len(doubtful)
        await asyncio.sleep(spread(self._line.loop.luck, 0.05, REPEAT_S_MAX))
        again = await self._each("create", [creates[number] for number in doubtful], effect)
        for number, answer in zip(doubtful, again, strict=True):
            answers[number] = self._told_of(creates[number], answer)
        return answers

    def _told_of(self, create: Create, answer: Created | Conflict | Unavailable) -> Created | Conflict | Unavailable:
        """What a client says of a create that it sent twice: refused, it looks whether it met itself."""
        if isinstance(answer, Created):
            return answer._replace(repeated=True)
        there = at_once(self._newest.get(create.key)) if isinstance(answer, Conflict) else None
        if there is None or there.value != create.value:
            return answer
        return Created(there.version, there.created_ms, at_once(self._newest.get(create.guard)), repeated=True)

    async def _each(self, verb: str, items: Sequence[Any], effect: Callable[[Any], Any]) -> list[Any]:
        """A call of many: what is wrong with one is an answer in its place, what is wrong with all is everyone's."""
        line = self._line
        what = f"{verb} {' '.join(item.key.path for item in items)}"
        fates = line.draw_items(len(items)) if len(items) > 1 else [Fate.ARRIVES] * len(items)

        def one(item: Any, fate: Fate) -> Any:
            if fate is Fate.REFUSED:
                return line.unavailable(what)
            if fate is Fate.LATE:
                line.late(lambda: effect(item))
            elif fate is not Fate.LOST_THERE:
                answer = effect(item)
                if fate is Fate.ARRIVES:
                    return answer
            return line.uncertain(what)

        def all_of_them() -> list[Any]:
            return [one(item, fate) for item, fate in zip(items, fates, strict=True)]

        try:
            return await line.cross(what, all_of_them, writes=True)
        except Unavailable as error:
            return [error for _ in items]

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        return await self._line.cross(
            f"delete {key.path}", lambda: at_once(self._newest.delete(key, expected)), writes=True
        )

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        await self._line.cross(
            f"delete range {folder.path} {start}..{end}",
            lambda: at_once(self._newest.delete_range(folder, start, end)),
            writes=True,
        )

    async def session(self, timeout_ms: int) -> Session:
        return await self._line.cross("session", lambda: at_once(self._newest.session(timeout_ms)), writes=False)

    async def watch(self, prefix: str) -> AsyncIterator[Changes]:
        """Hints, some of them lost or doubled; now and then the stream breaks."""
        line = self._line
        changes = self._newest.watch(prefix)
        try:
            async for change in changes:
                if line.chance(line.weather.watch_broken):
                    raise line.unavailable(f"watch {prefix}")
                if not change.everything and line.chance(line.weather.event_lost):
                    line.tally["metadata event lost"] += 1
                    self._make_up()
                    continue
                yield change
                if line.chance(line.weather.event_doubled):
                    line.tally["metadata event doubled"] += 1
                    yield change
        finally:
            await changes.aclose()

    def _make_up(self) -> None:
        longest_s = self._line.weather.events_made_up_s_max
        if longest_s is not None:
            loop = self._line.loop
            loop.after(spread(loop.luck, 0.01, longest_s), self._newest.watchers.tell_everything)

    async def now_ms(self) -> int:
        return await self._line.cross("now", lambda: at_once(self._newest.now_ms()), writes=False)

    async def close(self) -> None:
        await self._newest.close()


async def _next_page(pages: AsyncIterator[list[ObjectInfo]]) -> list[ObjectInfo] | None:
    return await anext(pages, None)


class FaultyObjects:
    """The object store as one machine sees it."""

    def __init__(self, store: ObjectStore, line: Line) -> None:
        self._store = store
        self._line = line

    async def put(self, key: str, body: Body) -> None:
        # A copy, because the caller may use its buffers again before a late put arrives.
        kept = [bytes(buffer) for buffer in body]
        await self._call(f"put {key}", lambda: self._store.put(key, kept), writes=True)

    async def create(self, key: str, body: Body) -> None:
        kept = [bytes(buffer) for buffer in body]
        await self._call(f"create {key}", lambda: self._store.create(key, kept), writes=True)

    async def get(self, key: str) -> Buffer:
        return await self._call(f"get {key}", lambda: self._store.get(key), writes=False)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._call(f"get {key}", lambda: self._store.get_ranges(key, spans), writes=False)

    async def head(self, key: str) -> ObjectInfo:
        return await self._call(f"head {key}", lambda: self._store.head(key), writes=False)

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        """Each page is a call of its own."""
        pages = self._store.walk(prefix, after)
        while True:
            page = await self._call(f"walk {prefix}", lambda: _next_page(pages), writes=False)
            if page is None:
                return
            yield page

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call(f"delete {' '.join(keys)}", lambda: self._store.delete(keys), writes=True)

    async def close(self) -> None:
        """The store is everybody's and stays."""

    async def _call(self, what: str, work: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        return await self._line.cross(what, lambda: at_once(work()), writes=writes)


class FaultySegments:
    """The disk as one machine sees it. A disk loses no call, but it may be slow or refuse, and its machine may stall or
    die before and after each one; what dies in the middle of an append leaves a torn one behind."""

    def __init__(self, disk: MemoryDisk, clock: Clock, line: Line) -> None:
        # Modification times are the disk's own, so its clock is not the machine's.
        self._files = MemorySegments(disk, clock, line.loop.luck, (0.0002, 0.01))
        self._line = line
        line.machine.on_death.append(self._files.crash)

    async def create(self, name: str) -> "FaultySegment":
        await self._line.halt(f"create {name}")
        file = await self._files.create(name)
        await self._line.halt(f"created {name}")
        return FaultySegment(file, self._line)

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        await self._line.halt(f"read {name}")
        return await self._files.read(name, spans)

    async def look(self, name: str, spans: Sequence[Span], see: See[T]) -> list[T]:
        await self._line.halt(f"look {name}")
        return await self._files.look(name, spans, see)

    def opened(self, name: str) -> OpenFile | None:
        return self._files.opened(name)

    async def size(self, name: str) -> int:
        await self._line.halt(f"size {name}")
        return await self._files.size(name)

    async def walk(self) -> list[SegmentInfo]:
        await self._line.halt("walk")
        return await self._files.walk()

    async def delete(self, names: Sequence[str]) -> None:
        await self._line.halt(f"delete {' '.join(names)}")
        await self._files.delete(names)

    async def close(self) -> None:
        await self._files.close()


class FaultySegment:
    def __init__(self, file: MemorySegment, line: Line) -> None:
        self._file = file
        self._line = line

    @property
    def name(self) -> str:
        return self._file.name

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def broken(self) -> bool:
        return self._file.broken

    async def append(self, buffers: Sequence[Buffer]) -> None:
        await self._line.halt(f"append {self.name}")
        await self._file.append(buffers)
        await self._line.halt(f"appended {self.name}", refuses=False)

    async def close(self) -> None:
        await self._file.close()
