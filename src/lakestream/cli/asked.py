"""SIGUSR1: what a broker is at, as lines in its log. For whoever asks why a client waits: serve.py.

    broker.unanswered client=… requests=…    who waits for an answer
    broker.task name=… at=…                  where every task stands: the innermost call first

It costs nothing until somebody asks.
"""

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

log = logging.getLogger(__name__)

CALLS_MAX: Final = 6
Unanswered = Callable[[], list[tuple[str, int]]]
"""Clients, and how many requests of each have no answer yet."""


def tells_when_asked(unanswered: Unanswered) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, tell, unanswered)


def tell(unanswered: Unanswered) -> None:
    for client, requests in unanswered():
        log.warning("broker.unanswered client=%s requests=%d", client, requests)
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        log.warning("broker.task name=%s at=%s", task.get_name(), where(task))


def where(task: "asyncio.Task[Any]") -> str:
    """The calls of a task that waits, the innermost first."""
    calls = [_shown(frame) for frame in _frames(task.get_coro())]
    return " < ".join(reversed(calls[-CALLS_MAX:])) or "its end"


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _shown(frame: FrameType) -> str:
    file = PurePath(frame.f_code.co_filename)
    return f"{file.parent.name}/{file.name}:{frame.f_lineno} {frame.f_code.co_name}"
