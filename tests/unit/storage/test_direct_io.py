"""Large files bypass the page cache: complete for any size, and also on disks that do not support O_DIRECT."""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Unavailable
from lakestream.storage import direct_io
from lakestream.storage.direct_io import DIRECT_SIZE_MIN, write_direct
from lakestream.storage.local_disk import Disk

PIECE = random.Random(1).randbytes(direct_io._PIECE_SIZE)
BLOCK = direct_io._ALIGNMENT


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


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, len(PIECE) - 1, len(PIECE), len(PIECE) + 1])
def test_file_of_any_size_has_the_written_bytes(tmp_path: Path, size: int) -> None:
    body = (PIECE + PIECE[::-1])[:size]
    assert written(tmp_path / "file", [body]) == body


def test_buffers_of_any_size_are_joined(tmp_path: Path) -> None:
    rng = random.Random(2)
    parts = [PIECE[: rng.randrange(1, 700_000)] for _ in range(40)]
    assert written(tmp_path / "file", parts) == b"".join(parts)


def test_only_large_files_are_written_with_o_direct(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        os.close(os.open(tmp_path / "tried", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except (OSError, AttributeError):
        pytest.skip("the file system of the tests does not support O_DIRECT")
    direct: list[bool] = []
    sync = os.fsync

    def recorded(file: int) -> None:
        direct.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT))
        sync(file)

    monkeypatch.setattr(os, "fsync", recorded)
    for size in (DIRECT_SIZE_MIN - 1, DIRECT_SIZE_MIN):
        direct.clear()
        disk.write(f"of-{size}", [bytes(size)], overwrite=True)
        assert any(direct) == (size >= DIRECT_SIZE_MIN)
        assert disk.head(f"of-{size}").size == size


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_write_falls_back_to_the_page_cache_when_the_disk_rejects_the_alignment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write = os.pwrite

    def rejects_offsets(file: int, data: memoryview, position: int) -> int:
        if direct_io._is_direct(file) and position:
            raise OSError(code, os.strerror(code))
        return write(file, data, position)

    monkeypatch.setattr(os, "pwrite", rejects_offsets)
    body = PIECE * 3 + b"the rest"
    assert written(tmp_path / "file", [body]) == body


def test_write_uses_the_page_cache_when_o_direct_is_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(file: int, enabled: bool) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(direct_io, "_set_direct", unsupported)
    assert written(tmp_path / "file", [PIECE, b"x"]) == PIECE + b"x"


def test_write_continues_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, rng = os.pwrite, random.Random(3)

    def short(file: int, data: memoryview, position: int) -> int:
        if direct_io._is_direct(file):
            return write(file, data[: max(BLOCK, len(data) // 2 // BLOCK * BLOCK)], position)
        return write(file, data[: rng.randrange(1, len(data) + 1)], position)

    monkeypatch.setattr(os, "pwrite", short)
    assert written(tmp_path / "file", [PIECE, PIECE, b"end"]) == PIECE + PIECE + b"end"


def test_write_of_zero_bytes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: 0)
    with pytest.raises(OSError, match="accepts no more bytes"):
        written(tmp_path / "file", [PIECE])


def test_full_disk_keeps_the_old_object(disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
