"""Join what waits: while one request is on its way, the calls that come meanwhile make up the next one.

Nobody waits for a group to fill: alone, a call leaves at once; under load, groups grow by themselves. This is ten times
cheaper than one request per call. Used by writes.py and reads.py.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lakestream.errors import Unavailable

Op = TypeVar("Op")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Ask(Generic[Op, Answer]):
    """One caller with its operations. It hears when the last of them is answered."""

    ops: Sequence[Op]
    answers: dict[int, Answer] = field(default_factory=dict)
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def answer(self, index: int, answer: Answer) -> None:
        self.answers[index] = answer
        if len(self.answers) == len(self.ops) and not self.done.done():
            self.done.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Grouper(Generic[Op, Answer]):
    """`send` gets the operations of a group in the order in which they came and returns their answers in that order."""

    def __init__(
        self,
        send: Callable[[list[Op]], Awaitable[list[Answer]]],
        *,
        size_of: Callable[[Op], int],
        count_max: int,
        bytes_max: int,
        waiting_max: int,
    ) -> None:
        self._send = send
        self._size_of = size_of
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiting_max = waiting_max
        self._waiting: deque[tuple[_Ask[Op, Answer], int]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self._closed: Unavailable | None = None

    async def ask(self, ops: Sequence[Op]) -> list[Answer]:
        """The operations of one call keep their order, and may be spread over several groups."""
        if not ops:
            return []
        await self._wait_for_room()
        ask: _Ask[Op, Answer] = _Ask(ops)
        self._waiting.extend((ask, index) for index in range(len(ops)))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="oxia.group")
        await ask.done
        return [ask.answers[index] for index in range(len(ops))]

    async def close(self, reason: Unavailable) -> None:
        self._closed = reason
        self._room.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        while self._waiting:
            self._waiting.popleft()[0].fail(reason)

    async def _wait_for_room(self) -> None:
        while self._closed is None and len(self._waiting) >= self._waiting_max:
            self._room.clear()
            await self._room.wait()
        if self._closed is not None:
            raise self._closed

    async def _run(self) -> None:
        """Lives while something waits, so an idle client has no tasks."""
        group: list[tuple[_Ask[Op, Answer], int]] = []
        try:
            while group := self._next_group():
                await self._answer(group)
        finally:
            self._task = None
            for ask, _ in group:
                ask.fail(self._closed or Unavailable("oxia: the request was given up"))

    async def _answer(self, group: list[tuple[_Ask[Op, Answer], int]]) -> None:
        try:
            answers = await self._send([ask.ops[index] for ask, index in group])
            assert len(answers) == len(group), "one answer per operation"
        except Exception as error:  # whatever it is, those who wait must hear it
            for ask, _ in group:
                ask.fail(error)
            return
        for (ask, index), answer in zip(group, answers, strict=True):
            ask.answer(index, answer)

    def _next_group(self) -> list[tuple[_Ask[Op, Answer], int]]:
        group: list[tuple[_Ask[Op, Answer], int]] = []
        bytes_left = self._bytes_max
        while self._waiting and len(group) < self._count_max:
            ask, index = self._waiting[0]
            if not ask.done.done():  # a caller that went away needs nothing any more
                bytes_left -= self._size_of(ask.ops[index])
                if bytes_left < 0 and group:
                    break
                group.append((ask, index))
            self._waiting.popleft()
        if len(self._waiting) < self._waiting_max:
            self._room.set()
        return group
