"""Processes on one metadata file, killed and stopped: no acknowledged write is lost, and watches are notified."""

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
from tests.harness.processes import sqlite_worker
from tests.harness.processes.sqlite_worker import COUNTERS, GUARD, MEMBERS, NEWS, RACE, RACERS, SESSION_MS

from lakestream.clock import SystemClock
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import put_one

pytestmark = pytest.mark.alone

WORKER = Path(sqlite_worker.__file__)


class Worker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self._reading = asyncio.create_task(self._read_output())

    async def _read_output(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            self.lines.append(line.decode().strip())

    async def send(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def wait_for(self, line: str, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while line not in self.lines:  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._reading

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None


class Workers:
    def __init__(self, database: Path) -> None:
        self._database = database
        self._started: list[Worker] = []

    async def start(self, *arguments: str) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            WORKER,
            self._database,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
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
    """Runs four processes and repeatedly kills and replaces one; returns all processes by name."""
    rng = random.Random(4)
    all_workers: dict[str, Worker] = {}
    running: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        while len(running) < 4:
            name = f"w{len(all_workers)}"
            all_workers[name] = await workers.start("hammer", name)
            running.append(name)
        await asyncio.sleep(rng.uniform(0.1, 0.8))
        # The oldest or the newest: some are killed during their work, some during their start.
        name = running.pop(rng.choice([0, 0, -1]))
        assert not all_workers[name].ended, "only the test ends a worker; its error is on stderr"
        await all_workers[name].kill()
    for name in running:
        await all_workers[name].kill()
    return all_workers


async def test_no_acknowledged_write_is_lost_when_processes_are_killed(database: Path, workers: Workers) -> None:
    all_workers = await hammer_and_kill(workers, seconds=8)
    acked = [(name, *line.split()) for name, worker in all_workers.items() for line in worker.lines]
    created = {path: name for name, event, path, *_ in acked if event == "created"}
    counted = Counter(path for _, event, path, *_ in acked if event == "counted")
    assert len(created) > 500, "too few creates for a test"
    assert len({name for name in created.values()}) > 4
    assert len(created) == sum(event == "created" for _, event, *_ in acked), "a key was created twice"

    async with opened(database) as store:
        records = {record.path: record for record in (await store.scan(RACE)).records}
        assert {path: records[path].value.decode() for path in created} == created
        versions = {(path, int(rest[0])) for _, event, path, *rest in acked if event == "created"}
        assert versions <= {(path, record.version) for path, record in records.items()}
        assert_gapless([int(record.name) for record in records.values()])
        for key in COUNTERS:
            record = await store.get(key)
            assert record is not None
            # An increment of a killed process may have taken effect without an acknowledgement.
            assert counted[key.path] <= int(record.value) <= counted[key.path] + len(all_workers)

    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def assert_gapless(numbers: list[int]) -> None:
    """Asserts that each sequence has no gap: its keys are created in order, from the start of the first process."""
    for sequence in range(RACERS):
        created = sorted(number for number in numbers if number % RACERS == sequence)
        assert created == list(range(sequence, created[-1] + 1, RACERS)) if created else True


async def test_sessions_expire_when_their_processes_are_killed(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        doomed, safe = await workers.start("member", "doomed"), await workers.start("member", "safe")
        await doomed.wait_for("member")
        await safe.wait_for("member")
        assert [record.name for record in (await store.scan(MEMBERS)).records] == ["doomed", "safe"]
        await doomed.kill()
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert [record.name for record in (await store.scan(MEMBERS)).records] == ["safe"]
        await safe.send("status")
        await safe.wait_for("alive")


async def test_session_is_lost_when_its_process_was_stopped(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        stopped = await workers.start("member", "stopped")
        await stopped.wait_for("member")
        stopped.signal(signal.SIGSTOP)
        await asyncio.sleep(SESSION_MS / 1000 + 1)
        assert await store.get(MEMBERS.key("stopped")) is None
        stopped.signal(signal.SIGCONT)
        await stopped.send("status")
        await stopped.wait_for("lost")


async def test_watch_is_notified_of_a_change_in_another_process_within_10_ms(database: Path, workers: Workers) -> None:
    async with opened(database) as store:
        writer = await workers.start("put")
        await writer.wait_for("ready")
        changes = store.watch(NEWS.path)
        assert (await anext(changes)).everything
        took_ms = []
        for number in range(20):
            await asyncio.sleep(0.03)
            await writer.send(str(number))
            async with asyncio.timeout(10):
                while NEWS.key(str(number)).path not in (await anext(changes)).paths:
                    pass
            notified_ns = time.monotonic_ns()
            record = await store.get(NEWS.key(str(number)))
            assert record is not None
            took_ms.append((notified_ns - int(record.value)) / 1e6)
        assert statistics.median(took_ms) < 10, took_ms


async def test_watches_of_other_processes_are_notified_when_some_are_killed(database: Path, workers: Workers) -> None:
    wake = database.with_name("metadata.db-wake")
    async with opened(database) as store:
        for number in range(3):
            watchers = [await workers.start("watch") for _ in range(2)]
            for watcher in watchers:
                await watcher.wait_for("everything")
            await put_one(store, NEWS.key(str(number)), b"")
            for watcher in watchers:
                await watcher.wait_for(f"woken {NEWS.key(str(number)).path}")
                await watcher.kill()
        assert os.listdir(wake), "killed processes leave their wake files"
        await put_one(store, GUARD, b"")
        async with asyncio.timeout(10):
            while os.listdir(wake):  # noqa: ASYNC110 - cleared by the writer's thread
                await asyncio.sleep(0.01)
