"""Runs load generators against a server, and measures the server during the load."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from benchmarks.common.measure import Run, measured
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.tasks import LoadResult, Task
from benchmarks.kafka.servers import Server

LOAD_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class LoadRun(Run):
    """The measured run of the server, and the result of each load generator."""

    results: tuple[LoadResult, ...]


class Generator:
    """Process of a load generator: call `ready`, then `go`, then `result`."""

    def __init__(self, task: Task, process: asyncio.subprocess.Process) -> None:
        self._task = task
        self._process = process

    async def ready(self) -> None:
        await self._line()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def result(self) -> LoadResult:
        return msgspec.json.decode(await self._line(), type=LoadResult)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(LOAD_S_MAX):
            line = await self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"the load generator failed, see above: {self._task}")
        return line


@asynccontextmanager
async def generator(task: Task) -> AsyncIterator[Generator]:
    """Starts a load generator and waits until it is ready; kills it at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.kafka.load",
        msgspec.json.encode(task).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        load = Generator(task, process)
        await load.ready()
        yield load
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_load(server: Server, *tasks: Task, amount: int) -> LoadRun:
    """Runs all tasks concurrently. `amount` is the sum of bytes, records or requests of all tasks."""
    try:
        async with AsyncExitStack() as opened:
            generators = [await opened.enter_async_context(generator(task)) for task in tasks]
            with measured(server.pid) as cost:
                for load in generators:
                    load.go()
                results = [await load.result() for load in generators]
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; end of the log of {server.name}: {server.log_tail()}") from error
    return LoadRun(amount, cost, tuple(results))


# Figures of a run


def mb_per_s(run: LoadRun) -> float:
    return run.per_s / 1e6


def cpu_s_per_gb(run: LoadRun) -> float:
    return run.cpu_s_per_gb


def cores(run: LoadRun) -> float:
    return run.cost.cpu_s / run.cost.seconds
