"""The SQLite store beyond the contract: bounded files, threads that end, notifications of other processes."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.clock import SystemClock
from lakestream.metadata.sqlite import SqliteSettings, SqliteStore, reads
from lakestream.metadata.sqlite.database import CHANGES_KEPT
from lakestream.metadata.sqlite.notify_socket import NotifySocket
from lakestream.metadata.sqlite.transaction import _find
from lakestream.metadata.sqlite.writer import SqliteWriter
from lakestream.metadata.store import Changes, Create, Created, Folder, Put, put_one
from lakestream.model import KiB

FOLDER = Folder("/f", "/f")
NO_POLLING = SqliteSettings(poll_ms=60_000)
"""Every change that a watch reports was caused by a notification."""


async def started_watch(store: SqliteStore) -> AsyncIterator[Changes]:
    changes = store.watch(FOLDER.path)
    assert (await anext(changes)).everything
    return changes


async def wait_for_change(changes: AsyncIterator[Changes], name: str) -> None:
    async with asyncio.timeout(10):
        while FOLDER.key(name).path not in (await anext(changes)).paths:
            pass


@pytest.mark.parametrize("depth", [0, 10], ids=["short path", "longer than a socket's address"])
async def test_notification_wakes_the_watch_of_another_store(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a long folder name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    watching = await SqliteStore.open(folder / "m.db", SystemClock(), NO_POLLING)
    writing = await SqliteStore.open(folder / "m.db", SystemClock(), NO_POLLING)
    changes = await started_watch(watching)
    for name in ("a", "b"):
        await put_one(writing, FOLDER.key(name), b"")
        await wait_for_change(changes, name)
    await writing.delete(FOLDER.key("a"))
    await wait_for_change(changes, "a")
    await watching.close()
    await writing.close()
    assert list((folder / "m.db-wake").iterdir()) == []


async def test_watch_pause_coalesces_many_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last change is reported, too, although no notification follows it."""
    read_count = 0

    def counted(connection: sqlite3.Connection, seen: int, now_ms: int) -> reads.ChangesSince:
        nonlocal read_count
        read_count += 1
        return changes_since(connection, seen, now_ms)

    changes_since = reads.changes_since
    monkeypatch.setattr(reads, "changes_since", counted)
    settings = SqliteSettings(poll_ms=60_000, watch_pause_ms=200)
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    changes = await started_watch(watching)
    reported: set[str] = set()
    started_s = time.monotonic()
    for number in range(50):
        await put_one(writing, FOLDER.key(f"{number:03d}"), b"")
        await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        while len(reported) < 50:
            reported |= (await anext(changes)).paths
    assert read_count <= 3 + (time.monotonic() - started_s) / 0.2
    await watching.close()
    await writing.close()


async def test_delete_range_is_reported_key_by_key(tmp_path: Path) -> None:
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), NO_POLLING)
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    names = [f"{number:05d}" for number in range(2_500)]
    await writing.put([Put(FOLDER.key(name), b"") for name in names])
    changes = await started_watch(watching)
    await writing.delete_range(FOLDER, names[1], names[-1])
    deleted: set[str] = set()
    async with asyncio.timeout(10):
        while len(deleted) < len(names) - 2:
            deleted |= (await anext(changes)).paths
    assert deleted == {FOLDER.key(name).path for name in names[1:-1]}
    assert [record.path for record in (await writing.scan(FOLDER)).records] == [
        FOLDER.key(names[0]).path,
        FOLDER.key(names[-1]).path,
    ]
    await watching.close()
    await writing.close()


async def test_polling_finds_the_change_of_a_lost_notification(tmp_path: Path) -> None:
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), SqliteSettings(poll_ms=200))
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    changes = await started_watch(watching)
    (socket,) = (tmp_path / "m.db-wake").iterdir()
    socket.unlink()
    await put_one(writing, FOLDER.key("a"), b"")
    await wait_for_change(changes, "a")
    async with asyncio.timeout(10):
        while not socket.exists():  # noqa: ASYNC110 - polling binds it again
            await asyncio.sleep(0.02)
    await watching.close()
    await writing.close()


def test_sockets_of_dead_processes_are_deleted(tmp_path: Path) -> None:
    sockets = []
    for n in range(5):
        socket = NotifySocket(tmp_path, f"socket-{n}")
        socket.bind().close()  # the state that a killed process leaves
        sockets.append(socket)
        assert len(list(tmp_path.iterdir())) == 1
    for socket in sockets:
        socket.close()
    assert list(tmp_path.iterdir()) == []


async def test_closing_ends_threads_and_tasks(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await started_watch(store)
    await store.session(10_000)
    assert any(thread.name.startswith("metadata.sqlite") for thread in threading.enumerate())
    await store.close()
    assert not any(thread.name.startswith("metadata.sqlite") for thread in threading.enumerate())
    assert {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("metadata")} == set()
    assert not (tmp_path / "m.db-wal").exists(), "the last process that closes the database checkpoints it"


async def test_close_executes_waiting_calls(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    puts = [asyncio.create_task(put_one(store, FOLDER.key(f"{n}"), b"")) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)


async def test_session_is_lost_when_another_process_ended_it(tmp_path: Path) -> None:
    """For example, because the clock of that process is ahead."""
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    session = await store.session(1_000)
    assert not session.lost
    connection = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    connection.execute("DELETE FROM sessions")
    connection.close()
    async with asyncio.timeout(10):
        await session.wait_lost()
    assert session.lost
    await store.close()


async def test_all_calls_succeed_when_the_queue_is_full(tmp_path: Path) -> None:
    settings = SqliteSettings(jobs_max=4, group_max=3)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    await asyncio.gather(*(put_one(store, FOLDER.key(f"{n:03}"), b"") for n in range(100)))
    assert len((await store.scan(FOLDER)).records) == 100
    await store.close()


async def test_store_works_after_cancelled_calls(tmp_path: Path) -> None:
    settings = SqliteSettings(jobs_max=4)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    for _ in range(5):
        calls = [asyncio.create_task(put_one(store, FOLDER.key(f"{n}"), b"")) for n in range(20)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    await put_one(store, FOLDER.key("after"), b"")
    await store.close()


async def test_wal_file_is_bounded(tmp_path: Path) -> None:
    """SQLite's own checkpoints are switched off."""
    settings = SqliteSettings(checkpoint_pages=0, wal_bytes_max=256 * KiB)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    for n in range(50):
        await put_one(store, FOLDER.key(f"{n:03}"), b"x" * 100 * KiB)
    assert (tmp_path / "m.db-wal").stat().st_size < 512 * KiB
    assert len((await store.scan(FOLDER)).records) == 50
    await store.close()


async def test_number_of_recorded_deletions_is_bounded(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.put([Put(FOLDER.key(f"{n:05}"), b"") for n in range(CHANGES_KEPT + 2000)])
    await store.delete_range(FOLDER, "", "~")
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    (kept,) = connection.execute("SELECT count(*) FROM deleted").fetchone()
    newest = reads.version(connection)
    assert kept <= CHANGES_KEPT
    assert reads.changes_since(connection, 0, 0).paths is None, "older than the recorded deletions"
    recent = reads.changes_since(connection, newest - 10, 0).paths
    assert recent is not None
    assert len(recent) == 10
    connection.close()


@pytest.mark.parametrize("sql", [reads.GET, reads.FLOOR, reads.CEILING, reads.SCAN, reads.SCAN_TO])
async def test_reads_use_the_index(tmp_path: Path, sql: str) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    arguments = {"folder": "/f", "name": "a", "start": "a", "end": "b", "limit": 1, "now": 0}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments)]
    assert plan[0].startswith("SEARCH records USING INDEX sqlite_autoindex_records_1 (folder=? AND name")
    assert not any("SCAN" in step or "TEMP" in step for step in plan)
    connection.close()


@pytest.mark.parametrize("count", [1, 16])
async def test_reads_of_guards_use_the_index(tmp_path: Path, count: int) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {_find(count)}", [""] * 3 * count)]
    assert "SEARCH records USING INDEX sqlite_autoindex_records_1 (folder=? AND name=?)" in plan
    connection.close()


async def test_each_create_of_a_large_call_has_its_result(tmp_path: Path) -> None:
    """More creates than fit into one statement: every third key exists, and one key is created twice."""
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    names = [f"{number:03d}" for number in range(50)]
    await store.put([Put(FOLDER.key(name), b"other") for name in names[::3]])
    guards = [FOLDER.key(f"guard {number % 2}") for number in range(51)]
    await put_one(store, guards[1], b"there")
    creates = [Create(FOLDER.key(name), b"own", guard) for name, guard in zip([*names, "001"], guards, strict=True)]
    results = await store.create(creates)
    created = [number for number, result in enumerate(results) if isinstance(result, Created)]
    assert created == [number for number in range(50) if number % 3]
    versions = [result.version for result in results if isinstance(result, Created)]
    assert versions == sorted(set(versions))
    for number in created:
        result, stored_record = results[number], await store.get(creates[number].key)
        assert isinstance(result, Created)
        assert stored_record is not None
        assert (stored_record.value, stored_record.version) == (b"own", result.version)
        assert (None if result.guard is None else result.guard.value) == (b"there" if number % 2 else None)
    stored = await put_one(store, FOLDER.key("later"), b"")
    assert stored.version > versions[-1]
    await store.close()


async def test_concurrent_calls_share_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far fewer fsyncs than puts: a thousand sequential puts take a thousand."""
    shared: list[int] = []

    def counted(writer: SqliteWriter, jobs: list[Any]) -> Any:
        shared.append(len(jobs))
        return commit(writer, jobs)

    commit = SqliteWriter._commit
    monkeypatch.setattr(SqliteWriter, "_commit", counted)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await asyncio.gather(*(put_one(store, FOLDER.key(f"many {n}"), b"") for n in range(1000)))
    assert sum(shared) == 1000
    assert len(shared) < 100
    await store.close()
