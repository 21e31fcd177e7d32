"""Large files past the page cache: whole whatever their size, on disks that can do it and on those that cannot."""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Unavailable
from lakestream.storage import direct
from lakestream.storage.direct import DIRECT_SIZE_MIN, write_direct
from lakestream.storage.disk import Disk

SOME = random.Random(1).randbytes(direct._PIECE_SIZE)
BLOCK = direct._ALIGNMENT


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path, SystemClock(), RandomIds())


def written(path: Path, body: list[bytes]) -> bytes:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_direct(file, [memoryview(part) for part in body])
    finally:
        os.close(file)
    return path.read_bytes()


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, len(SOME) - 1, len(SOME), len(SOME) + 1])
def test_a_file_of_any_size_is_what_was_given(tmp_path: Path, size: int) -> None:
    body = (SOME + SOME[::-1])[:size]
    assert written(tmp_path / "file", [body]) == body


def test_buffers_that_end_anywhere_are_joined(tmp_path: Path) -> None:
    luck = random.Random(2)
    parts = [SOME[: luck.randrange(1, 700_000)] for _ in range(40)]
    assert written(tmp_path / "file", parts) == b"".join(parts)


def test_large_files_go_past_the_cache_and_small_ones_do_not(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.close(os.open(tmp_path / "tried", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except (OSError, AttributeError):
        pytest.skip("the file system of the tests cannot do it")
    seen: list[bool] = []
    sync = os.fsync

    def noted(file: int) -> None:
        seen.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT))
        sync(file)

    monkeypatch.setattr(os, "fsync", noted)
    for size in (DIRECT_SIZE_MIN - 1, DIRECT_SIZE_MIN):
        seen.clear()
        disk.write(f"of-{size}", [bytes(size)], overwrite=True)
        assert any(seen) == (size >= DIRECT_SIZE_MIN)
        assert disk.look(f"of-{size}").size == size


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_a_disk_that_wants_it_otherwise_is_written_to_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write = os.pwrite

    def choosy(file: int, data: memoryview, position: int) -> int:
        if direct._is_direct(file) and position:
            raise OSError(code, os.strerror(code))
        return write(file, data, position)

    monkeypatch.setattr(os, "pwrite", choosy)
    body = SOME * 3 + b"the rest"
    assert written(tmp_path / "file", [body]) == body


def test_a_file_system_that_cannot_do_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(file: int, wanted: bool) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(direct, "_set_direct", refused)
    assert written(tmp_path / "file", [SOME, b"x"]) == SOME + b"x"


def test_short_writes_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, luck = os.pwrite, random.Random(3)

    def short(file: int, data: memoryview, position: int) -> int:
        if direct._is_direct(file):
            return write(file, data[: max(BLOCK, len(data) // 2 // BLOCK * BLOCK)], position)
        return write(file, data[: luck.randrange(1, len(data) + 1)], position)

    monkeypatch.setattr(os, "pwrite", short)
    assert written(tmp_path / "file", [SOME, SOME, b"end"]) == SOME + SOME + b"end"


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        written(tmp_path / "file", [SOME])


def test_a_full_disk_shows_nothing(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.write("k", [b"kept"], overwrite=True)
    write = os.pwrite

    def full(file: int, data: memoryview, position: int) -> int:
        if position:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data, position)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unavailable, match="disk full"):
        disk.write("k", [bytes(DIRECT_SIZE_MIN)], overwrite=True)
    assert disk.read("k") == b"kept"
    assert [path.name for path in tmp_path.iterdir()] == ["k"]
