"""Signals of long-running commands: SIGUSR1 dumps pending requests and tasks, SIGTERM and Ctrl-C stop the process.

The dump shows why a client waits:

    broker.pending_requests client=… requests=…    clients whose requests have no response yet
    broker.task name=… at=…                        where each task waits, the innermost call first
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

log = logging.getLogger(__name__)

CALLS_MAX: Final = 6
PendingRequests = Callable[[], list[tuple[str, int]]]
"""Returns clients with the number of their requests that have no response yet."""


def install_task_dump(pending: PendingRequests) -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, log_tasks, pending)


def log_tasks(pending: PendingRequests) -> None:
    for client, requests in pending():
        log.warning("broker.pending_requests client=%s requests=%d", client, requests)
    for task in sorted(asyncio.all_tasks(), key=asyncio.Task.get_name):
        log.warning("broker.task name=%s at=%s", task.get_name(), stack_of(task))


def stack_of(task: "asyncio.Task[Any]") -> str:
    """Returns the calls of a waiting task, the innermost first."""
    calls = [_location(frame) for frame in _frames(task.get_coro())]
    return " < ".join(reversed(calls[-CALLS_MAX:])) or "its end"


def _frames(awaited: Any) -> Iterator[FrameType]:
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _location(frame: FrameType) -> str:
    file = PurePath(frame.f_code.co_filename)
    return f"{file.parent.name}/{file.name}:{frame.f_lineno} {frame.f_code.co_name}"


def stop_event(parent: int = -1) -> asyncio.Event:
    """Returns an event that SIGTERM, Ctrl-C or the end of the parent process sets.

    `parent`: a file descriptor that becomes readable when the parent ends; -1: no parent. A second Ctrl-C exits without
    a clean stop. A process with a parent ignores Ctrl-C, because the parent stops it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    def parent_exited() -> None:
        loop.remove_reader(parent)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if parent < 0:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(parent, parent_exited)
    return stop


async def readable(descriptor: int, stop: asyncio.Event) -> bool:
    """Waits until a file descriptor is readable. Returns False if the process is stopped before."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    waits = [loop.create_task(one.wait(), name="serve.wait") for one in (event, stop)]
    loop.add_reader(descriptor, event.set)
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return not stop.is_set()
    finally:
        loop.remove_reader(descriptor)
        for wait in waits:
            wait.cancel()
