"""The metadata store of a simulated machine: a memory store behind a line with faults."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from lakestream.errors import Conflict, Missing, Unavailable, Uncertain
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
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
from lakestream.testing.fault_injection import CallOutcome, Line, log_uniform, run_now

REPEAT_S_MAX: Final = 10.0


class FaultyMetadata:
    """A metadata store behind the line of one machine."""

    def __init__(self, server: MemoryServer, line: Line) -> None:
        self._newest = server.client()
        self._line = line
        self._deposed: MemoryMetadataStore | None = None
        self._deposed_until = 0.0
        # The server's session timer of a dead or paused machine must not die or pause with the machine.
        line.machine.on_death.append(lambda: line.loop.after(0.0, self._newest.silence))
        line.machine.on_pause.append(lambda: line.loop.after(0.0, self._newest.silence))
        line.machine.on_resume.append(lambda: line.loop.after(0.0, self._newest.resume))

    def depose(self, snapshot: MemoryServer, seconds: float) -> None:
        """For `seconds`, a deposed leader may serve reads from `snapshot`, its state when it was deposed.

        Writes and confirmed reads never reach it."""
        self._deposed = snapshot.client()
        self._deposed_until = self._line.loop.now + seconds

    def _node(self, confirmed: bool) -> MemoryMetadataStore:
        if self._deposed is None or confirmed:
            return self._newest
        if self._line.loop.now >= self._deposed_until:
            self._deposed = None
            return self._newest
        if not self._line.chance(self._line.rates.stale_read):
            return self._newest
        self._line.tally["metadata stale read"] += 1
        return self._deposed

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await self._line.cross(f"get {key.path}", lambda: run_now(self._node(confirmed).get(key)), writes=False)

    async def floor(self, folder: Folder, name: str) -> Record | None:
        return await self._line.cross(
            f"floor {folder.path} {name}", lambda: run_now(self._node(False).floor(folder, name)), writes=False
        )

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        return await self._line.cross(
            f"ceiling {folder.path} {name}", lambda: run_now(self._node(False).ceiling(folder, name)), writes=False
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
            return run_now(self._node(confirmed).scan(folder, start, end, limit=limit, guard=guard))

        return await self._line.cross(f"scan {folder.path} {start}..{end}", effect, writes=False)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        def effect(put: Put) -> Stored | Conflict | Missing | Unavailable:
            return run_now(self._newest.put([put]))[0]

        return await self._each("put", puts, effect)

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        def effect(create: Create) -> Created | Conflict | Unavailable:
            return run_now(self._newest.create([create]))[0]

        answers = await self._each("create", creates, effect)
        uncertain = [number for number, answer in enumerate(answers) if isinstance(answer, Uncertain)]
        if not uncertain or not self._line.chance(self._line.rates.repeats):
            return answers
        self._line.tally["metadata repeated by itself"] += len(uncertain)
        await asyncio.sleep(log_uniform(self._line.loop.rng, 0.05, REPEAT_S_MAX))
        again = await self._each("create", [creates[number] for number in uncertain], effect)
        for number, answer in zip(uncertain, again, strict=True):
            answers[number] = self._repeated(creates[number], answer)
        return answers

    def _repeated(self, create: Create, answer: Created | Conflict | Unavailable) -> Created | Conflict | Unavailable:
        """Returns the client's result of a create that it sent twice: after a conflict it checks for its own record."""
        if isinstance(answer, Created):
            return answer._replace(repeated=True)
        stored = run_now(self._newest.get(create.key)) if isinstance(answer, Conflict) else None
        if stored is None or stored.value != create.value:
            return answer
        return Created(stored.version, stored.created_ms, run_now(self._newest.get(create.guard)), repeated=True)

    async def _each(self, verb: str, items: Sequence[Any], effect: Callable[[Any], Any]) -> list[Any]:
        """Sends a call with several items. An item's error is its result; an error of the call is that of all items."""
        line = self._line
        what = f"{verb} {' '.join(item.key.path for item in items)}"
        outcomes = line.draw_items(len(items)) if len(items) > 1 else [CallOutcome.ARRIVES] * len(items)

        def one(item: Any, outcome: CallOutcome) -> Any:
            if outcome is CallOutcome.REFUSED:
                return line.unavailable(what)
            if outcome is CallOutcome.LATE:
                line.late(lambda: effect(item))
            elif outcome is not CallOutcome.LOST_THERE:
                answer = effect(item)
                if outcome is CallOutcome.ARRIVES:
                    return answer
            return line.uncertain(what)

        def all_of_them() -> list[Any]:
            return [one(item, outcome) for item, outcome in zip(items, outcomes, strict=True)]

        try:
            return await line.cross(what, all_of_them, writes=True)
        except Unavailable as error:
            return [error for _ in items]

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        return await self._line.cross(
            f"delete {key.path}", lambda: run_now(self._newest.delete(key, expected)), writes=True
        )

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        await self._line.cross(
            f"delete range {folder.path} {start}..{end}",
            lambda: run_now(self._newest.delete_range(folder, start, end)),
            writes=True,
        )

    async def session(self, timeout_ms: int) -> Session:
        return await self._line.cross("session", lambda: run_now(self._newest.session(timeout_ms)), writes=False)

    async def watch(self, prefix: str) -> AsyncIterator[Changes]:
        """Yields change events, some of them lost or doubled; the watch fails now and then."""
        line = self._line
        changes = self._newest.watch(prefix)
        try:
            async for change in changes:
                if line.chance(line.rates.watch_broken):
                    raise line.unavailable(f"watch {prefix}")
                if not change.everything and line.chance(line.rates.event_lost):
                    line.tally["metadata event lost"] += 1
                    self._schedule_full_notification()
                    continue
                yield change
                if line.chance(line.rates.event_doubled):
                    line.tally["metadata event doubled"] += 1
                    yield change
        finally:
            await changes.aclose()

    def _schedule_full_notification(self) -> None:
        delay_s_max = self._line.rates.events_made_up_s_max
        if delay_s_max is not None:
            loop = self._line.loop
            loop.after(log_uniform(loop.rng, 0.01, delay_s_max), self._newest.watchers.notify_everything)

    async def now_ms(self) -> int:
        return await self._line.cross("now", lambda: run_now(self._newest.now_ms()), writes=False)

    async def close(self) -> None:
        await self._newest.close()
