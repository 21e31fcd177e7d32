"""Where the work that blocks is done: Parquet, Arrow, kernels. The event loop only waits for it."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

THREADS: Final = max(2, min(4, os.cpu_count() or 2))

T = TypeVar("T")


class Run(Protocol):
    """Does something beside the event loop."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


class Threads:
    """Where Parquet is read and batches are made: Python's lock is held for little of it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="history")

    async def __call__(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _tellable, work)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown, cancel_futures=True)


def _tellable(work: Callable[[], T]) -> T:
    """A future cannot be told of a StopIteration: whoever waits for it would wait for ever."""
    try:
        return work()
    except StopIteration as error:
        raise RuntimeError("an iterator ended too early") from error
