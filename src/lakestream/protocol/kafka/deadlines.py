"""When requests that wait have waited long enough, in steps: one timer for all whose time is over in the same step.

Used by handlers/produce.py. Nearly every request is answered long before, so its own timer would be made only to be
cancelled: at a thousand requests a second that is a twentieth of what a broker does.
"""

import asyncio
from typing import Final, Protocol

STEP_S: Final = 0.05
TIMEOUT_S_MAX: Final = 600.0
"""Clients may say what they like, and each other time that they say is a step that is kept until then."""


class Waiting(Protocol):
    def time_is_over(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._steps: dict[int, dict[Waiting, None]] = {}  # in order of coming, so that runs can be told again

    def add(self, waiting: Waiting, timeout_s: float) -> int:
        """The step at which it is told, unless it is removed from it: no sooner, and at most `STEP_S` later."""
        loop = asyncio.get_running_loop()
        step = int((loop.time() + min(max(timeout_s, 0.0), TIMEOUT_S_MAX)) / STEP_S) + 1
        others = self._steps.get(step)
        if others is None:
            others = self._steps[step] = {}
            loop.call_at(step * STEP_S, self._end, step)
        others[waiting] = None
        return step

    def remove(self, waiting: Waiting, step: int) -> None:
        self._steps.get(step, {}).pop(waiting, None)

    def _end(self, step: int) -> None:
        loop = asyncio.get_running_loop()
        for waiting in self._steps.pop(step):
            loop.call_soon(waiting.time_is_over)  # what goes wrong with one is that one's
