"""Errors of the file, the disk and other processes: one line each, and no acknowledged write is lost."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lakestream.clock import SystemClock
from lakestream.errors import Corrupt, Misconfigured, Unavailable, Uncertain
from lakestream.metadata.sqlite import SqliteSettings, SqliteStore
from lakestream.metadata.sqlite.database import SCHEMA_VERSION, Database
from lakestream.metadata.sqlite.errors import explain_commit
from lakestream.metadata.sqlite.file_lock import FileLock
from lakestream.metadata.sqlite.notify_socket import NotifySocket
from lakestream.metadata.store import Folder, Put, Stored, put_one
from lakestream.model import KiB

FOLDER = Folder("/f", "/f")
IMPATIENT = SqliteSettings(lock_wait_ms=100)


async def make(path: Path, records: int = 0) -> None:
    store = await SqliteStore.open(path, SystemClock())
    await store.put([Put(FOLDER.key(f"{n:05}"), b"x" * 500) for n in range(records)])
    await store.close()


async def open_fails(path: Path, kind: type[Exception]) -> str:
    with pytest.raises(kind) as failed:
        await SqliteStore.open(path, SystemClock(), IMPATIENT)
    line = str(failed.value)
    assert str(path) in line
    assert "\n" not in line
    return line


async def test_open_fails_when_the_folder_is_missing(tmp_path: Path) -> None:
    line = await open_fails(tmp_path / "no" / "m.db", Misconfigured)
    assert f"there is no folder {tmp_path / 'no'}" in line


async def test_open_fails_when_the_path_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "m.db").mkdir()
    await open_fails(tmp_path / "m.db", Misconfigured)


async def test_open_fails_when_the_folder_accepts_no_files() -> None:
    await open_fails(Path("/proc/m.db"), Misconfigured)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_open_fails_when_the_folder_is_read_only(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o500)
    assert "Permission denied" in await open_fails(tmp_path / "m.db", Misconfigured)


async def test_open_fails_when_the_file_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "m.db").write_bytes(b"some text, not a database\n" * 500)
    assert "restore it from a backup" in await open_fails(tmp_path / "m.db", Corrupt)
    assert (tmp_path / "m.db").read_bytes().startswith(b"some text")


async def test_open_fails_for_the_database_of_another_program(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "m.db")
    connection.execute("CREATE TABLE notes (text)")
    connection.close()
    assert "another program's" in await open_fails(tmp_path / "m.db", Misconfigured)


async def test_open_fails_for_a_newer_schema(tmp_path: Path) -> None:
    await make(tmp_path / "m.db")
    connection = sqlite3.connect(tmp_path / "m.db")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    assert "upgrade" in await open_fails(tmp_path / "m.db", Misconfigured)


async def test_damaged_pages_are_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    await make(path, records=500)
    body = bytearray(path.read_bytes())
    body[8 * KiB :] = b"\xa5" * (len(body) - 8 * KiB)
    path.write_bytes(body)
    store = await SqliteStore.open(path, SystemClock())
    try:
        with pytest.raises(Corrupt, match=f"{path}.*(Stop all brokers|stop all brokers)"):
            await store.scan(FOLDER)
        with pytest.raises(Corrupt, match=str(path)):
            await put_one(store, FOLDER.key("new"), b"")
    finally:
        await store.close()


async def test_full_disk_is_unavailable_and_acknowledged_writes_are_kept(tmp_path: Path) -> None:
    """SQLite's own limit on the file size has the effect of a full disk."""
    database = Database(tmp_path / "m.db", SqliteSettings())
    opened = database.open()
    (pages,) = opened.writer.execute("PRAGMA page_count").fetchone()
    opened.writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    store = SqliteStore(database, opened, NotifySocket(database.wake_path, "me"), SystemClock())
    try:
        results = [(await store.put([Put(FOLDER.key(f"{n:05}"), b"x" * 4 * KiB)]))[0] for n in range(40)]
        acked = [f"{n:05}" for n, result in enumerate(results) if isinstance(result, Stored)]
        assert 5 < len(acked) < 40
        assert type(results[-1]) is Unavailable
        assert "the disk is full" in str(results[-1])
        assert [record.name for record in (await store.scan(FOLDER)).records] == acked
        await store.delete_range(FOLDER, "", "00003")
        await put_one(store, FOLDER.key("after space was freed"), b"x" * 4 * KiB)
    finally:
        await store.close()


def test_writes_succeed_again_after_a_file_size_limit(tmp_path: Path) -> None:
    """The kernel rejects writes, then accepts them again. In a child process: the limit applies to all of its files."""
    script = """
        import asyncio, resource, sys
        from pathlib import Path
        from lakestream.clock import SystemClock
        from lakestream.errors import Unavailable
        from lakestream.metadata.sqlite import SqliteStore
        from lakestream.metadata.store import Folder, put_one

        FOLDER = Folder("/f", "/f")

        async def main(path: Path) -> None:
            store = await SqliteStore.open(path, SystemClock())
            resource.setrlimit(resource.RLIMIT_FSIZE, (600 * 1024, resource.RLIM_INFINITY))
            acked, failures = [], 0
            for n in range(400):
                try:
                    await put_one(store, FOLDER.key(f"{n:05}"), b"x" * 4096)
                    acked.append(f"{n:05}")
                except Unavailable:
                    failures += 1
            assert acked and failures, (len(acked), failures)
            found = {record.name for record in (await store.scan(FOLDER)).records}
            assert found == set(acked), "rejected puts were not written"
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await put_one(store, FOLDER.key("after space was freed"), b"x" * 4096)
            await store.close()
            again = await SqliteStore.open(path, SystemClock())
            found = {record.name for record in (await again.scan(FOLDER)).records}
            assert found == {*acked, "after space was freed"}
            await again.close()

        asyncio.run(main(Path(sys.argv[1])))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), tmp_path / "m.db"], check=True, timeout=60)


async def test_put_is_unavailable_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), IMPATIENT)
    await put_one(store, FOLDER.key("a"), b"")
    other = FileLock(tmp_path / "m.db-lock", 0)
    with other.acquired():
        results = await store.put([Put(FOLDER.key("b"), b""), Put(FOLDER.key("c"), b"")])
        assert [type(result) for result in results] == [Unavailable, Unavailable]
        assert "m.db-lock" in str(results[0])
        assert await store.get(FOLDER.key("a")) is not None, "reads do not wait"
    assert isinstance(await put_one(store, FOLDER.key("b"), b""), Stored)
    await store.close()
    other.close()


async def test_put_is_unavailable_while_another_program_locks_the_database(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock(), IMPATIENT)
    tool = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    tool.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        await put_one(store, FOLDER.key("a"), b"")
    tool.execute("ROLLBACK")
    tool.close()
    await put_one(store, FOLDER.key("a"), b"")
    await store.close()


async def test_put_is_unavailable_when_the_file_was_moved(tmp_path: Path) -> None:
    """What is written into a deleted file is lost, so it must not be acknowledged."""
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    (tmp_path / "m.db").rename(tmp_path / "moved.db")
    with pytest.raises(Unavailable, match="moved or deleted"):
        await put_one(store, FOLDER.key("a"), b"")
    (tmp_path / "moved.db").rename(tmp_path / "m.db")
    await put_one(store, FOLDER.key("a"), b"")
    await store.close()


async def test_invalid_call_does_not_fail_other_calls(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "m.db", SystemClock())
    bad, good = await asyncio.gather(
        put_one(store, FOLDER.key("\ud800"), b""), put_one(store, FOLDER.key("good"), b""), return_exceptions=True
    )
    assert isinstance(bad, UnicodeEncodeError)
    assert isinstance(good, Stored)
    await store.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, Uncertain),
        (sqlite3.SQLITE_IOERR_WRITE, Unavailable),
        (sqlite3.SQLITE_FULL, Unavailable),
        (sqlite3.SQLITE_CORRUPT, Corrupt),
    ],
)
def test_failed_commit_has_the_right_error_class(code: int, kind: type[Exception]) -> None:
    error = sqlite3.OperationalError("message of SQLite")
    error.sqlite_errorcode = code
    assert type(explain_commit(error, Path("m.db"))) is kind
