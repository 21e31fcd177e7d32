"""Real processes on one metadata file, killed and stopped: nothing acknowledged is lost, and the others hear of it."""

import asyncio
import os
import random
import signal
import sqlite3
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from tests.integration.sqlite_worker import COUNTERS, GUARD, MEMBERS, NEWS, RACE, RACERS, SESSION_MS

from lakestream.clock import SystemClock
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import put_one

WORKER = Path(__file__).with_name("sqlite_worker.py")


class Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.said: list[str] = []
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            self.said.append(line.decode().strip())

    async def hears(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def says(self, line: str, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while line not in self.said:  # noqa: ASYNC110 - said by another process
                await asyncio.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._listening

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None


class Workers:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._started: list[Worker] = []

    async def start(self, *what: str) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, WORKER, self._database, *what, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        worker = Worker(process)
        self._started.append(worker)
        return worker

    async def close(self) -> None:
        for worker in self._started:
            await worker.kill()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
async def workers(database: Path) -> AsyncIterator[Workers]:
    workers = Workers(database)
    yield workers
    await workers.close()


@asynccontextmanager
async def opened(database: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(database, SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def hammer_and_kill(workers: Workers, seconds: float) -> dict[str, Worker]:
    """Four processes at a time, one of them killed again and again; by name, all there ever were."""
    luck = random.Random(4)
    everyone: dict[str, Worker] = {}
    running: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        while len(running) < 4:
            name = f"w{len(everyone)}"
            everyone[name] = await workers.start("hammer", name)
            running.append(name)
        await asyncio.sleep(luck.uniform(0.1, 0.8))
        # The oldest or the youngest: some are killed in the middle of their work, some while they start.
        name = running.pop(luck.choice([0, 0, -1]))
        assert not everyone[name].ended, "only we end a worker; its error is on stderr"
        await everyone[name].kill()
    for name in running:
        await everyone[name].kill()
    return everyone


async def test_killed_processes_lose_nothing(database: Path, workers: Workers) -> None:
    everyone = await hammer_and_kill(workers, seconds=8)
    acked = [(name, *line.split()) for name, worker in everyone.items() for line in worker.said]
    created = {path: name for name, what, path, *_ in acked if what == "created"}
    counted = Counter(path for _, what, path, *_ in acked if what == "counted")
    assert len(created) > 500, "too few to prove anything"
    assert len({name for name in created.values()}) > 4
    assert len(created) == sum(what == "created" for _, what, *_ in acked), "a key was created twice"

    async with opened(database) as store:
        records = {record.path: record for record in (await store.scan(RACE)).records}
        assert {path: records[path].value.decode() for path in created} == created
        versions = {(path, int(rest[0])) for _, what, path, *rest in acked if what == "created"}
        assert versions <= {(path, record.version) for path, record in records.items()}
        assert_gapless([int(record.name) for record in records.values()])
        for key in COUNTERS:
            found = await store.get(key)
            assert found is not None
            # A killed process may have had one more increment on its way that took effect and was never told.
            assert counted[key.path] <= int(found.value) <= counted[key.path] + len(everyone)

    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def assert_gapless(numbers: list[int]) -> None:
    """In each lane, as its keys are tried one after the other. Keys start where the first process started."""
    for lane in range(RACERS):
        mine = sorted(number for number in numbers if number % RACERS == lane)
        assert mine == list(range(lane, mine[-1] + 1, RACERS)) if mine else True


async def test_sessions_of_killed_processes_expire(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        doomed, safe = await workers.start("member", "doomed"), await workers.start("member", "safe")
        await doomed.says("member")
        await safe.says("member")
        assert [record.name for record in (await store.scan(MEMBERS)).records] == ["doomed", "safe"]
        await doomed.kill()
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert [record.name for record in (await store.scan(MEMBERS)).records] == ["safe"]
        await safe.hears("how are you?")
        await safe.says("alive")


async def test_a_stopped_process_finds_its_session_lost(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        stopped = await workers.start("member", "stopped")
        await stopped.says("member")
        stopped.signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert await store.get(MEMBERS.key("stopped")) is None
        stopped.signal(signal.SIGCONT)
        await stopped.hears("how are you?")
        await stopped.says("lost")


async def test_a_change_in_another_process_wakes_within_10_ms(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        writer = await workers.start("put")
        await writer.says("ready")
        changes = store.watch(NEWS.path)
        assert (await anext(changes)).everything
        took_ms = []
        for turn in range(20):
            await asyncio.sleep(0.03)
            await writer.hears(str(turn))
            async with asyncio.timeout(10):
                while NEWS.key(str(turn)).path not in (await anext(changes)).paths:
                    pass
            woken_ns = time.monotonic_ns()
            record = await store.get(NEWS.key(str(turn)))
            assert record is not None
            took_ms.append((woken_ns - int(record.value)) / 1e6)
        assert statistics.median(took_ms) < 10, took_ms


async def test_watchers_in_other_processes_are_woken_while_some_die(database: Path, workers: Workers) -> None:
    wake = database.with_name("metadata.db-wake")
    async with opened(database) as store:
        for turn in range(3):
            watchers = [await workers.start("watch") for _ in range(2)]
            for watcher in watchers:
                await watcher.says("everything")
            await put_one(store, NEWS.key(str(turn)), b"")
            for watcher in watchers:
                await watcher.says(f"woken {NEWS.key(str(turn)).path}")
                await watcher.kill()
        assert os.listdir(wake), "the killed could not clean up behind them"
        await put_one(store, GUARD, b"")
        async with asyncio.timeout(10):
            while os.listdir(wake):  # noqa: ASYNC110 - cleared by the writer's thread
                await asyncio.sleep(0.01)
