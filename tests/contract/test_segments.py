"""Contract of SegmentFiles, on the real disk and on the simulated one."""

import asyncio
import errno
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from lakestream.clock import SystemClock
from lakestream.data.wal import segments as disk_module
from lakestream.data.wal.names import segment_name
from lakestream.data.wal.segments import DiskSegments, SegmentFile, SegmentFiles
from lakestream.errors import Conflict, Misconfigured, Missing, OutOfRange, Rejected, Unavailable
from lakestream.model import Buffer, Span
from lakestream.records.file_region import FileRegion
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments

NAME = segment_name(1_700_000_000_000, "w", 1)
OTHER = segment_name(1_700_000_000_001, "w", 2)


class Bench(NamedTuple):
    files: SegmentFiles
    fill: Callable[[], None]
    """Fills the disk."""
    free: Callable[[], None]
    fail_syncs: Callable[[], None]


@pytest.fixture(params=["disk", "disk, with a pool", "memory"])
async def bench(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Bench]:
    if request.param == "memory":
        made = _memory_bench()
    else:
        pool = _from_pool if request.param == "disk, with a pool" else None
        made = _disk_bench(tmp_path / "wal", monkeypatch, pool)
    yield made
    await made.files.close()


@pytest.fixture
def files(bench: Bench) -> SegmentFiles:
    return bench.files


def _from_pool(size: int) -> memoryview:
    return memoryview(bytearray(b"?" * size))


def _disk_bench(
    folder: Path, monkeypatch: pytest.MonkeyPatch, allocate: Callable[[int], memoryview] | None = None
) -> Bench:
    write = os.pwritev

    def half_then_full(file: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes as a real disk: the bytes that fit, then the next call fails."""
        if offset % 2 == 0 and len(buffers[0]) > 1:
            return write(file, [bytes(buffers[0])[:1]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return Bench(
        DiskSegments(folder, allocate),
        fill=lambda: monkeypatch.setattr(os, "pwritev", half_then_full),
        free=lambda: monkeypatch.setattr(os, "pwritev", write),
        fail_syncs=lambda: monkeypatch.setattr(disk_module, "_sync_data", fail),
    )


def _memory_bench() -> Bench:
    disk = MemoryDisk()
    return Bench(
        MemorySegments(disk, SystemClock(), random.Random(1)),
        fill=lambda: setattr(disk, "size_max", disk.size),
        free=lambda: setattr(disk, "size_max", None),
        fail_syncs=lambda: setattr(disk, "syncs_fail", True),
    )


async def whole(files: SegmentFiles, name: str) -> bytes:
    (data,) = await files.read(name, [Span(0, await files.size(name))])
    return bytes(data)


async def test_appends_follow_one_another(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    assert (segment.name, segment.size) == (NAME, 0)
    await segment.append([b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]])
    assert segment.size == 6
    await segment.append([b"gh"])
    await segment.close()
    assert await whole(files, NAME) == b"abcdefgh"


async def test_a_reader_sees_an_append_while_the_file_is_open(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"0123456789"])
    spans = [Span(8, 10), Span(0, 3), Span(4, 4)]
    assert [bytes(data) for data in await files.read(NAME, spans)] == [b"89", b"012", b""]


async def test_thousands_of_buffers_in_one_append(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    pieces = [str(number).encode() for number in range(5000)]
    await segment.append(pieces)
    assert await whole(files, NAME) == b"".join(pieces)


async def test_empty_buffers_append_nothing(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"", b"a", b"", b"b", b""])
    await segment.append([])
    assert await whole(files, NAME) == b"ab"


async def test_create_conflicts_when_the_name_exists(files: SegmentFiles) -> None:
    first = await files.create(NAME)
    await first.append([b"mine"])
    with pytest.raises(Conflict):
        await files.create(NAME)
    assert await whole(files, NAME) == b"mine"


async def test_calls_raise_missing_for_an_unknown_segment(files: SegmentFiles) -> None:
    with pytest.raises(Missing):
        await files.read(NAME, [Span(0, 1)])
    with pytest.raises(Missing):
        await files.size(NAME)


@pytest.mark.parametrize("span", [Span(0, 5), Span(4, 5), Span(5, 5), Span(-1, 2), Span(3, 2), Span(0, 2**62)])
async def test_reads_beyond_the_end_are_out_of_range(files: SegmentFiles, span: Span) -> None:
    segment = await files.create(NAME)
    await segment.append([b"abcd"])
    with pytest.raises(OutOfRange):
        await files.read(NAME, [Span(0, 1), span])


@pytest.mark.parametrize("name", ["", "a", "../" + NAME, "/etc/passwd", NAME + "/x", NAME + "\n", "x" + NAME])
async def test_invalid_names_are_rejected(files: SegmentFiles, name: str) -> None:
    with pytest.raises(Rejected):
        await files.create(name)
    with pytest.raises(Rejected):
        await files.read(name, [Span(0, 0)])
    with pytest.raises(Rejected):
        await files.delete([name])


async def test_walk_lists_all_in_order_of_name(files: SegmentFiles) -> None:
    assert await files.walk() == []
    later = await files.create(OTHER)
    earlier = await files.create(NAME)
    await earlier.append([b"abc"])
    await later.append([b"z"])
    found = await files.walk()
    assert [(info.name, info.size) for info in found] == [(NAME, 3), (OTHER, 1)]
    assert all(abs(info.modified_ms - SystemClock().now_ms()) < 60_000 for info in found)


async def test_delete_ignores_missing_segments(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"abc"])
    await segment.close()
    await files.delete([NAME, OTHER])
    assert await files.walk() == []
    with pytest.raises(Missing):
        await files.read(NAME, [Span(0, 1)])


async def test_append_to_a_closed_file_is_unavailable(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"abc"])
    await segment.close()
    await segment.close()
    with pytest.raises(Unavailable):
        await segment.append([b"d"])
    assert await whole(files, NAME) == b"abc"


async def test_failed_append_is_truncated_when_the_disk_is_full(bench: Bench) -> None:
    segment = await bench.files.create(NAME)
    await segment.append([b"good"])
    bench.fill()
    for _ in range(2):
        with pytest.raises(Unavailable, match="disk is full"):
            await segment.append([b"too", b"much"])
        assert await whole(bench.files, NAME) == b"good"
    assert not segment.broken
    bench.free()
    await segment.append([b"again"])
    assert await whole(bench.files, NAME) == b"goodagain"


async def test_failed_sync_breaks_the_file(bench: Bench) -> None:
    segment = await bench.files.create(NAME)
    await segment.append([b"good"])
    bench.fail_syncs()
    with pytest.raises(Unavailable):
        await segment.append([b"lost"])
    assert segment.broken
    assert segment.size == 4
    with pytest.raises(Unavailable, match="new segment"):
        await segment.append([b"more"])
    assert (await whole(bench.files, NAME)).startswith(b"good")


async def test_cancelled_append_breaks_the_file(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"good"])
    task = asyncio.ensure_future(segment.append([b"maybe"]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert segment.broken
    with pytest.raises(Unavailable):
        await segment.append([b"more"])
    await segment.close()
    assert b"goodmaybe".startswith(await whole(files, NAME))
    assert (await whole(files, NAME)).startswith(b"good")


async def test_files_do_not_wait_for_one_another(files: SegmentFiles) -> None:
    names = [segment_name(1, "w", number) for number in range(8)]
    opened = [await files.create(name) for name in names]

    async def write(segment: SegmentFile) -> None:
        for number in range(20):
            await segment.append([f"{number},".encode()])

    await asyncio.gather(*(write(segment) for segment in opened))
    expected = "".join(f"{number}," for number in range(20)).encode()
    assert [await whole(files, name) for name in names] == [expected] * 8


# ── the real disk only ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda file, buffers, at: write(file, [b"".join(buffers)[:3]], at))
    files = DiskSegments(tmp_path)
    segment = await files.create(NAME)
    await segment.append([b"ab", b"", b"cdefg", b"h"])
    assert await whole(files, NAME) == b"abcdefgh"
    await files.close()


async def test_foreign_files_in_the_folder_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "deeper").mkdir()
    files = DiskSegments(tmp_path)
    assert await files.walk() == []
    await files.close()


async def test_unusable_folder_is_misconfigured(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    files = DiskSegments(tmp_path / "file" / "wal")
    with pytest.raises(Misconfigured, match="--wal-dir"):
        await files.create(NAME)
    await files.close()


FILE_SIZE_LIMIT = """
    import asyncio, resource, sys
    from pathlib import Path
    from lakestream.data.wal.segments import DiskSegments
    from lakestream.errors import Unavailable

    async def main(folder, name):
        files = DiskSegments(Path(folder))
        segment = await files.create(name)
        await segment.append([b"x" * 600])
        try:
            await segment.append([b"y" * 300, b"z" * 300])
        except Unavailable as error:
            print(error)
        print(await files.size(name), segment.broken)
        await segment.append([b"w" * 100])
        print(await files.size(name))
        await files.close()

    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    asyncio.run(main(*sys.argv[1:]))
"""


def test_torn_bytes_are_truncated_at_the_file_size_limit(tmp_path: Path) -> None:
    """The kernel writes a part of an append and rejects the rest."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FILE_SIZE_LIMIT), str(tmp_path), NAME],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert "disk is full" in lines[0]
    assert lines[1:] == ["600 False", "700"]


# ── the simulated disk only ──────────────────────────────────────────────────────────────────────────────────────────


async def test_prefix_of_an_append_is_kept_after_a_crash() -> None:
    kept = set()
    for seed in range(60):
        disk = MemoryDisk()
        files = MemorySegments(disk, SystemClock(), random.Random(seed), append_s=(0.0, 0.001))
        segment = await files.create(NAME)
        await segment.append([b"good"])
        task = asyncio.ensure_future(segment.append([b"12", b"34"]))
        await asyncio.sleep(0)
        files.crash()
        with pytest.raises(Unavailable):
            await task
        with pytest.raises(Unavailable):
            await files.walk()
        kept.add(bytes(disk.files[NAME].data))
    assert kept == {b"good", b"good1", b"good12", b"good123", b"good1234"}


async def test_read_each_converts_each_span(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"0123456789"])
    seen = await files.read_each(NAME, [Span(2, 5), Span(0, 10)], lambda index, view, _file: (index, bytes(view)))
    assert seen == [(0, b"234"), (1, b"0123456789")]
    with pytest.raises(OutOfRange):
        await files.read_each(NAME, [Span(5, 11)], lambda _index, view, _file: bytes(view))
    with pytest.raises(Missing):
        await files.read_each(OTHER, [Span(0, 1)], lambda _index, view, _file: bytes(view))


async def test_open_file_stays_readable_after_delete(files: SegmentFiles) -> None:
    segment = await files.create(NAME)
    await segment.append([b"0123456789"])
    (file,) = await files.read_each(NAME, [Span(0, 10)], lambda _index, _view, file: file)
    assert file is files.open_file(NAME)
    await segment.close()
    await files.delete([NAME])
    if file is not None:  # a disk in memory has no files to send from
        assert FileRegion(file, 3, 4).read() == b"3456"
