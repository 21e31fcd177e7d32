"""The local store beyond the contract: order of syncs, crashes, a full disk, missing permissions."""

import asyncio
import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Conflict, Misconfigured, Missing, Rejected, Unavailable, Uncertain
from lakestream.model import Buffer
from lakestream.storage import local_disk as disk_module
from lakestream.storage.local_disk import Disk
from lakestream.storage.local_store import FileStore
from lakestream.storage.startup_check import check_store

CLOCK, IDS = SystemClock(), RandomIds()


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "lake", CLOCK, IDS)


def write(disk: Disk, key: str, body: bytes = b"x", *, overwrite: bool = True) -> None:
    disk.write(key, [body], overwrite=overwrite)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# Order of steps


@pytest.mark.parametrize("overwrite", [True, False])
def test_write_syncs_bytes_before_the_rename_and_the_folder_before_it_returns(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    steps: list[str] = []
    sync, replace, link = os.fsync, os.replace, os.link

    def name_of(file: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        return "temporary" if path.name.startswith(".part-") else str(path.relative_to(tmp_path))

    def recorded_sync(file: int) -> None:
        steps.append(f"sync {name_of(file)}")
        sync(file)

    def recorded_name(do: Callable[[Path, Path], None], old: Path, new: Path) -> None:
        steps.append("name")
        do(old, new)

    monkeypatch.setattr(os, "fsync", recorded_sync)
    monkeypatch.setattr(os, "replace", partial(recorded_name, replace))
    monkeypatch.setattr(os, "link", partial(recorded_name, link))
    write(disk, "a/b/k", overwrite=overwrite)
    assert steps == ["sync .", "sync lake", "sync lake/a", "sync temporary", "name", "sync lake/a/b"]
    steps.clear()
    write(disk, "a/b/k2", overwrite=overwrite)
    assert steps == ["sync temporary", "name", "sync lake/a/b"]


def test_missing_parents_of_the_root_are_created_and_synced(tmp_path: Path) -> None:
    write(Disk(tmp_path / "x/y/lake", CLOCK, IDS), "k")
    assert files(tmp_path) == ["x/y/lake/k"]


def test_folder_is_created_again_when_it_was_deleted(disk: Disk, tmp_path: Path) -> None:
    write(disk, "a/b/1")
    (tmp_path / "lake/a/b/1").unlink()
    (tmp_path / "lake/a/b").rmdir()
    (tmp_path / "lake/a").rmdir()
    write(disk, "a/b/2")
    assert files(tmp_path) == ["lake/a/b/2"]


def test_write_continues_after_a_short_write(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev

    def three_bytes(file: int, buffers: list[memoryview]) -> int:
        assert len(buffers) <= disk_module._IOV_MAX
        return writev(file, [buffers[0][:3]])

    monkeypatch.setattr(os, "writev", three_bytes)
    body: list[Buffer] = [b"", b"abcdefgh", bytearray(b"ij"), b"", memoryview(b"klmnop")]
    disk.write("k", body, overwrite=True)
    assert (tmp_path / "lake/k").read_bytes() == b"abcdefghijklmnop"


def test_read_continues_after_a_short_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(disk, "k", b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: pread(file, min(size, 3), start))
    assert disk.read("k") == b"0123456789"


# Crashes


def test_walk_skips_temporary_files_and_deletes_old_ones(disk: Disk, tmp_path: Path) -> None:
    write(disk, "a/k")
    young, old = tmp_path / "lake/a/.part-young", tmp_path / "lake/a/.part-old"
    for path in (young, old):
        path.write_bytes(b"half of")
    two_hours_ago = CLOCK.now_ms() / 1000 - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    assert [info.key for info in disk.objects("", "")] == ["a/k"]
    assert files(tmp_path) == ["lake/a/.part-young", "lake/a/k"]
    with pytest.raises(Rejected):
        disk.read("a/.part-young")


def test_write_fails_without_an_object_when_its_temporary_file_was_deleted(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = os.fsync

    def sync_then_delete(file: int) -> None:
        sync(file)
        path = os.readlink(f"/proc/self/fd/{file}")
        if ".part-" in path:
            os.unlink(path)

    monkeypatch.setattr(os, "fsync", sync_then_delete)
    for overwrite in (True, False):
        with pytest.raises(Unavailable):
            write(disk, "k", overwrite=overwrite)
    assert files(tmp_path) == []


def test_one_of_several_processes_creates_an_object(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from lakestream.clock import RandomIds, SystemClock
        from lakestream.errors import Conflict
        from lakestream.storage.local_disk import Disk
        disk = Disk(Path(sys.argv[1]), SystemClock(), RandomIds())
        won = []
        for number in range(100):
            try:
                disk.write(f"race/{number}", [sys.argv[2].encode()], overwrite=False)
                won.append(number)
            except Conflict:
                pass
        print(*won)
    """)
    command = [sys.executable, "-c", script, str(tmp_path)]
    processes = [subprocess.Popen([*command, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)]
    won = {n: [int(word) for word in process.communicate(timeout=60)[0].split()] for n, process in enumerate(processes)}
    assert sorted(number for numbers in won.values() for number in numbers) == list(range(100))
    for n, numbers in won.items():
        assert all((tmp_path / f"race/{number}").read_text() == str(n) for number in numbers)
    assert not [name for name in files(tmp_path) if ".part-" in name]


# Disk full


def test_full_disk_is_one_line_of_error_and_loses_no_object(tmp_path: Path) -> None:
    """A limit on file sizes in a child process simulates a full disk: EFBIG takes the same error path."""
    script = textwrap.dedent("""
        import asyncio, resource, sys
        from pathlib import Path
        from lakestream.clock import RandomIds, SystemClock
        from lakestream.errors import Unavailable, Uncertain
        from lakestream.storage.local_store import FileStore

        async def main() -> None:
            store = FileStore(Path(sys.argv[1]), SystemClock(), RandomIds())
            await store.put("before", [b"kept"])
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            for write in (store.put, store.create):
                for key in ("before", "new") if write == store.put else ("new",):
                    try:
                        await write(key, [bytes(60_000), bytes(60_000)])
                    except Unavailable as error:
                        assert not isinstance(error, Uncertain)
                        print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            await store.create("new", [bytes(120_000)])
            print((await store.get("before")).decode())
            await store.close()

        asyncio.run(main())
    """)
    completed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    *errors, kept = completed.stdout.splitlines()
    assert len(errors) == 3
    assert all(line.startswith("disk full: cannot write ") and "Free space" in line for line in errors)
    assert kept == "kept"
    assert files(tmp_path) == ["before", "new"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_at_any_step_is_unavailable_and_leaves_no_object(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write(disk, "k", b"kept")

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    for step in ("writev", "fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, full)
            with pytest.raises(Unavailable, match="disk full"):
                write(disk, "k", b"new")
        assert disk.read("k") == b"kept"
    assert files(tmp_path) == ["lake/k"]


def test_write_is_uncertain_when_the_folder_sync_fails(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    write(disk, "a/k", b"old")

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk_module, "_sync_folder", broken)
    with pytest.raises(Uncertain, match="could not be synced"):
        write(disk, "a/k", b"new")


# Permissions and paths


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
async def test_folder_without_permission_is_misconfigured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The error is injected, because the tests may run as root, which has all permissions."""

    def denied(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    store = FileStore(tmp_path, CLOCK, IDS)
    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(Misconfigured, match="Give this user the right to read and write there") as raised:
        await check_store(store, "the folder", CLOCK, IDS)
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    await store.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root has all permissions")
def test_real_folder_without_permission_is_misconfigured(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir(mode=0o500)
    with pytest.raises(Misconfigured, match="Give this user the right"):
        write(Disk(tmp_path / "lake", CLOCK, IDS), "k")


def test_storage_folder_that_is_a_file_is_misconfigured(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file")
    with pytest.raises(Misconfigured, match="is a file: give the URL of a folder"):
        write(Disk(tmp_path / "lake", CLOCK, IDS), "k")


def test_key_is_rejected_when_it_is_the_folder_of_another(disk: Disk) -> None:
    write(disk, "a/k")
    for key, overwrite in [("a", True), ("a/k/x", True), ("a/k/x", False)]:
        with pytest.raises(Rejected, match="cannot be the folder of another key"):
            write(disk, key, overwrite=overwrite)
    with pytest.raises(Conflict):
        write(disk, "a", overwrite=False)
    with pytest.raises(Missing):
        disk.head("a")
    disk.remove(["a", "a/k/x"])
    assert disk.read("a/k") == b"x"


def test_links_out_of_the_root_are_not_followed_by_a_walk(disk: Disk, tmp_path: Path) -> None:
    write(disk, "a/k")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("x")
    (tmp_path / "lake/a/link").symlink_to(tmp_path / "outside")
    assert [info.key for info in disk.objects("", "")] == ["a/k"]


async def test_close_waits_for_running_calls(tmp_path: Path) -> None:
    store = FileStore(tmp_path, CLOCK, IDS)
    writes = [asyncio.create_task(store.put(f"k/{number}", [bytes(1000)])) for number in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    assert len(files(tmp_path)) == 50
