"""The SQLite store's own promises, beyond the contract: bounded files, threads that end, pokes that arrive."""

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
from lakestream.metadata.sqlite.transaction import _find
from lakestream.metadata.sqlite.wake import Mailbox
from lakestream.metadata.sqlite.writer import Writer
from lakestream.metadata.store import Changes, Create, Created, Folder, Put, put_one
from lakestream.model import KiB

FOLDER = Folder("/f", "/f")
NO_PATROL = SqliteSettings(patrol_ms=60_000)
"""Whatever is heard was told by a poke."""


async def first_look(store: SqliteStore) -> AsyncIterator[Changes]:
    changes = store.watch(FOLDER.path)
    assert (await anext(changes)).everything
    return changes


async def heard(changes: AsyncIterator[Changes], name: str) -> None:
    async with asyncio.timeout(10):
        while FOLDER.key(name).path not in (await anext(changes)).paths:
            pass


@pytest.mark.parametrize("depth", [0, 10], ids=["short path", "longer than a socket's address"])
async def test_a_poke_wakes_the_other_store(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["a long folder name"] * depth)
    folder.mkdir(parents=True, exist_ok=True)
    watching = await SqliteStore.open(folder / "m.db", SystemClock(), NO_PATROL)
    writing = await SqliteStore.open(folder / "m.db", SystemClock(), NO_PATROL)
    changes = await first_look(watching)
    for name in ("a", "b"):
        await put_one(writing, FOLDER.key(name), b"")
        await heard(changes, name)
    await writing.delete(FOLDER.key("a"))
    await heard(changes, "a")
    await watching.close()
    await writing.close()
    assert list((folder / "m.db-wake").iterdir()) == []


async def test_who_rests_hears_of_many_changes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the last of them, though no poke comes after it."""
    looks = 0

    def counted(connection: sqlite3.Connection, seen: int, now_ms: int) -> reads.News:
        nonlocal looks
        looks += 1
        return news(connection, seen, now_ms)

    news = reads.news
    monkeypatch.setattr(reads, "news", counted)
    settings = SqliteSettings(patrol_ms=60_000, rest_ms=200)
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    changes = await first_look(watching)
    told: set[str] = set()
    begun_s = time.monotonic()
    for number in range(50):
        await put_one(writing, FOLDER.key(f"{number:03d}"), b"")
        await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        while len(told) < 50:
            told |= (await anext(changes)).paths
    assert looks <= 3 + (time.monotonic() - begun_s) / 0.2
    await watching.close()
    await writing.close()


async def test_a_range_that_is_deleted_is_heard_key_by_key(tmp_path: Path) -> None:
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), NO_PATROL)
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    names = [f"{number:05d}" for number in range(2_500)]
    await writing.put([Put(FOLDER.key(name), b"") for name in names])
    changes = await first_look(watching)
    await writing.delete_range(FOLDER, names[1], names[-1])
    gone: set[str] = set()
    async with asyncio.timeout(10):
        while len(gone) < len(names) - 2:
            gone |= (await anext(changes)).paths
    assert gone == {FOLDER.key(name).path for name in names[1:-1]}
    assert [record.path for record in (await writing.scan(FOLDER)).records] == [
        FOLDER.key(names[0]).path,
        FOLDER.key(names[-1]).path,
    ]
    await watching.close()
    await writing.close()


async def test_a_lost_poke_is_found_by_the_patrol(tmp_path: Path) -> None:
    watching = await SqliteStore.open(tmp_path / "m.db", SystemClock(), SqliteSettings(patrol_ms=200))
    writing = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    changes = await first_look(watching)
    (socket,) = (tmp_path / "m.db-wake").iterdir()
    socket.unlink()
    await put_one(writing, FOLDER.key("a"), b"")
    await heard(changes, "a")
    async with asyncio.timeout(10):
        while not socket.exists():  # noqa: ASYNC110 - bound anew by the patrol
            await asyncio.sleep(0.02)
    await watching.close()
    await writing.close()


def test_sockets_of_the_dead_do_not_pile_up(tmp_path: Path) -> None:
    boxes = []
    for n in range(5):
        box = Mailbox(tmp_path, f"box-{n}")
        box.bind().close()  # as a killed process leaves it
        boxes.append(box)
        assert len(list(tmp_path.iterdir())) == 1
    for box in boxes:
        box.close()
    assert list(tmp_path.iterdir()) == []


async def test_closing_ends_threads_and_tasks(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await first_look(store)
    await store.session(10_000)
    assert any(thread.name.startswith("metadata.sqlite") for thread in threading.enumerate())
    await store.close()
    assert not any(thread.name.startswith("metadata.sqlite") for thread in threading.enumerate())
    assert {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("metadata")} == set()
    assert not (tmp_path / "m.db-wal").exists(), "the last to close leaves one tidy file"


async def test_closing_answers_those_who_wait(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    puts = [asyncio.create_task(put_one(store, FOLDER.key(f"{n}"), b"")) for n in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*puts)


async def test_a_session_that_somebody_else_ended_is_lost(tmp_path: Path) -> None:
    """As when another process's clock is ahead of this one's."""
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


async def test_more_callers_than_there_is_room_for(tmp_path: Path) -> None:
    settings = SqliteSettings(jobs_max=4, group_max=3)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    await asyncio.gather(*(put_one(store, FOLDER.key(f"{n:03}"), b"") for n in range(100)))
    assert len((await store.scan(FOLDER)).records) == 100
    await store.close()


async def test_a_cancelled_caller_leaves_the_store_well(tmp_path: Path) -> None:
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


async def test_the_write_ahead_file_is_bounded(tmp_path: Path) -> None:
    """Also where SQLite's own checkpoints do not get through."""
    settings = SqliteSettings(checkpoint_pages=0, wal_bytes_max=256 * KiB)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), settings)
    for n in range(50):
        await put_one(store, FOLDER.key(f"{n:03}"), b"x" * 100 * KiB)
    assert (tmp_path / "m.db-wal").stat().st_size < 512 * KiB
    assert len((await store.scan(FOLDER)).records) == 50
    await store.close()


async def test_the_list_of_deletions_is_bounded(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.put([Put(FOLDER.key(f"{n:05}"), b"") for n in range(CHANGES_KEPT + 2000)])
    await store.delete_range(FOLDER, "", "~")
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    (kept,) = connection.execute("SELECT count(*) FROM deleted").fetchone()
    newest = reads.version(connection)
    assert kept <= CHANGES_KEPT
    assert reads.news(connection, 0, 0).paths is None, "too far back to know"
    recent = reads.news(connection, newest - 10, 0).paths
    assert recent is not None
    assert len(recent) == 10
    connection.close()


@pytest.mark.parametrize("sql", [reads.GET, reads.FLOOR, reads.CEILING, reads.SCAN, reads.SCAN_TO])
async def test_reads_follow_the_index(tmp_path: Path, sql: str) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    arguments = {"folder": "/f", "name": "a", "start": "a", "end": "b", "limit": 1, "now": 0}
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments)]
    assert plan[0].startswith("SEARCH records USING INDEX sqlite_autoindex_records_1 (folder=? AND name")
    assert not any("SCAN" in step or "TEMP" in step for step in plan)
    connection.close()


@pytest.mark.parametrize("count", [1, 16])
async def test_guards_are_found_by_the_index(tmp_path: Path, count: int) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await store.close()
    connection = sqlite3.connect(tmp_path / "m.db")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {_find(count)}", [""] * 3 * count)]
    assert "SEARCH records USING INDEX sqlite_autoindex_records_1 (folder=? AND name=?)" in plan
    connection.close()


async def test_many_creates_at_once_have_their_own_answers(tmp_path: Path) -> None:
    """More than one statement takes; every third key is taken, and one is asked for twice."""
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    names = [f"{number:03d}" for number in range(50)]
    await store.put([Put(FOLDER.key(name), b"theirs") for name in names[::3]])
    guards = [FOLDER.key(f"guard {number % 2}") for number in range(51)]
    await put_one(store, guards[1], b"there")
    creates = [Create(FOLDER.key(name), b"ours", guard) for name, guard in zip([*names, "001"], guards, strict=True)]
    answers = await store.create(creates)
    made = [number for number, answer in enumerate(answers) if isinstance(answer, Created)]
    assert made == [number for number in range(50) if number % 3]
    versions = [answer.version for answer in answers if isinstance(answer, Created)]
    assert versions == sorted(set(versions))
    for number in made:
        answer, found = answers[number], await store.get(creates[number].key)
        assert isinstance(answer, Created)
        assert found is not None
        assert (found.value, found.version) == (b"ours", answer.version)
        assert (None if answer.guard is None else answer.guard.value) == (b"there" if number % 2 else None)
    stored = await put_one(store, FOLDER.key("later"), b"")
    assert stored.version > versions[-1]
    await store.close()


async def test_callers_at_once_share_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far fewer fsyncs than puts: a thousand alone would take a thousand."""
    shared: list[int] = []

    def counted(writer: Writer, jobs: list[Any]) -> Any:
        shared.append(len(jobs))
        return commit(writer, jobs)

    commit = Writer._commit
    monkeypatch.setattr(Writer, "_commit", counted)
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    await asyncio.gather(*(put_one(store, FOLDER.key(f"many {n}"), b"") for n in range(1000)))
    assert sum(shared) == 1000
    assert len(shared) < 100
    await store.close()
