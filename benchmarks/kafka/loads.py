"""Runs load generators against a server, and measures the server meanwhile."""

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
from benchmarks.kafka.load.tasks import Task, Told
from benchmarks.kafka.sides import Server

LOAD_S_MAX: Final = 300.0


@dataclass(frozen=True, slots=True)
class Loaded(Run):
    """What the server did, and what each generator tells of it."""

    told: tuple[Told, ...]


class Generator:
    """One process; `ready`, `go`, `told`, in this order."""

    def __init__(self, task: Task, process: asyncio.subprocess.Process) -> None:
        self._task = task
        self._process = process

    async def ready(self) -> None:
        await self._line()

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")

    async def told(self) -> Told:
        return msgspec.json.decode(await self._line(), type=Told)

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        async with asyncio.timeout(LOAD_S_MAX):
            line = await self._process.stdout.readline()
        if not line:
            raise LoadFailed(f"the load generator failed, see above: {self._task}")
        return line


@asynccontextmanager
async def generator(task: Task) -> AsyncIterator[Generator]:
    """Ready when the block is entered, gone with its connections when it is left."""
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
        made = Generator(task, process)
        await made.ready()
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def loaded(server: Server, *tasks: Task, amount: int) -> Loaded:
    """All tasks at once, on so many bytes (or things) in all."""
    try:
        async with AsyncExitStack() as opened:
            generators = [await opened.enter_async_context(generator(task)) for task in tasks]
            with measured(server.pid) as cost:
                for one in generators:
                    one.go()
                told = [await one.told() for one in generators]
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; the last that {server.name} said: {server.last_words()}") from error
    return Loaded(amount, cost, tuple(told))


# Figures of a run


def mb_per_s(run: Loaded) -> float:
    return run.per_s / 1e6


def cpu_s_per_gb(run: Loaded) -> float:
    return run.cpu_s_per_gb


def cores(run: Loaded) -> float:
    return run.cost.cpu_s / run.cost.seconds
