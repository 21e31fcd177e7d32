"""The disk seam of the `latency` profile: append-only segment files on a disk that every broker mounts.

Before: the writer, with one frame per append.  After: the disk. Knows nothing of what the bytes mean.

One append is in flight per file and is durable when it returns. A file has one dedicated thread: its appends keep their
order, and a slow disk holds up no other. An append that fails leaves the file as it was before it, or the file is
broken and takes nothing more: the writer rolls to a new one.

Space is not allocated ahead: measured, `fallocate` made a 64 KiB append with sync less than 5 % faster, and it would
hide how far a file is really written.
"""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from lakestream.beside import Beside
from lakestream.clock import Clock, Ids
from lakestream.data.wal.names import parse_segment_name
from lakestream.data.wal.names import segment_name as segment_name
from lakestream.errors import Conflict, LakestreamError, Misconfigured, Missing, OutOfRange, Rejected, Unavailable
from lakestream.filed import OpenFile
from lakestream.model import Buffer, MiB, Span

T = TypeVar("T")

See: TypeAlias = Callable[[int, memoryview, OpenFile | None], T]
"""Which span, its bytes, and the file if they may be sent from it."""

READ_THREADS = 4
SCRATCH_BYTES_MAX = 16 * MiB
"""A thread keeps as much memory to read into; more is asked for anew each time."""

_IOV_MAX = 1024
"""Buffers that one system call takes, on every system we know."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG})

_sync_data: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class SegmentInfo(NamedTuple):
    name: str
    size: int
    modified_ms: int
    """By the disk's own clock."""


class SegmentFile(Protocol):
    """A segment that is being written. It has one user, who waits for each append."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes that are durable: where the next append starts."""
        ...

    async def append(self, buffers: Sequence[Buffer]) -> None:
        """Durable when it returns. Unavailable: nothing of it stays, or the file is `broken`.

        Cancelled: it may or may not have been written, so the file is broken.
        """
        ...

    @property
    def broken(self) -> bool:
        """Takes no more appends; what was durable before stays readable."""
        ...

    async def close(self) -> None: ...


class SegmentFiles(Protocol):
    """Errors: Missing (no such segment), Conflict (create of an existing one), OutOfRange (read beyond the end),
    Unavailable (try again, or elsewhere), Misconfigured (folder or rights are wrong), Rejected (no segment's name)."""

    async def create(self, name: str) -> SegmentFile:
        """A new, empty segment; its existence is durable."""
        ...

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        """One buffer per span, in order. Never a short answer."""
        ...

    async def look(self, name: str, spans: Sequence[Span], see: See[T]) -> list[T]:
        """What `see` makes of each span. It is called beside the loop, and the bytes are gone when it returns."""
        ...

    def opened(self, name: str) -> OpenFile | None:
        """The file, if it is open here and what it holds may be sent from it."""
        ...

    async def size(self, name: str) -> int: ...

    async def walk(self) -> list[SegmentInfo]:
        """All segments, in order of name."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete them all; one that is missing is no error."""
        ...

    async def close(self) -> None: ...


class DiskSegments:
    def __init__(self, folder: Path, allocate: Callable[[int], memoryview] | None = None) -> None:
        """`allocate`: gives memory of so many bytes to read into, for who has a pool of it."""
        self._folder = folder
        self._allocate = allocate
        self._readers = ThreadPoolExecutor(READ_THREADS, "wal-read")
        self._open: set[DiskSegment] = set()
        self._files: WeakValueDictionary[str, OpenFile] = WeakValueDictionary()
        self._scratch = threading.local()

    async def create(self, name: str) -> "DiskSegment":
        path = self._path(name)
        segment = DiskSegment(path, on_close=self._open.discard)
        self._open.add(segment)
        try:
            self._files[name] = await segment.open()
        except BaseException:
            await segment.close()
            raise
        return segment

    async def read(self, name: str, spans: Sequence[Span]) -> list[Buffer]:
        return await _in_thread(self._readers, lambda: _read(self._path(name), spans, self._allocate))

    async def look(self, name: str, spans: Sequence[Span], see: See[T]) -> list[T]:
        path, known = self._path(name), self._files.get(name)
        file, seen = await _in_thread(self._readers, lambda: self._look(path, known, spans, see))
        self._files.setdefault(name, file)
        return seen

    def opened(self, name: str) -> OpenFile | None:
        return self._files.get(name)

    async def size(self, name: str) -> int:
        return await _in_thread(self._readers, lambda: _size(self._path(name)))

    async def walk(self) -> list[SegmentInfo]:
        return await _in_thread(self._readers, lambda: _walk(self._folder))

    async def delete(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]
        await _in_thread(self._readers, lambda: _delete(paths))

    async def close(self) -> None:
        for segment in tuple(self._open):
            await segment.close()
        self._readers.shutdown(wait=True)

    def _look(self, path: Path, known: OpenFile | None, spans: Sequence[Span], see: See[T]) -> tuple[OpenFile, list[T]]:
        """On a reader's thread, which reads into the same memory again and again: new memory costs as much as the
        reading."""
        file = known or _opened(path)
        try:
            size = os.fstat(file.descriptor).st_size
            seen = []
            for index, span in enumerate(spans):
                _check_span(span, size, path)
                room = self._room(span.size)
                _read_into(file.descriptor, room, span, path)
                seen.append(see(index, room.toreadonly(), file))
            return file, seen
        except OSError as error:
            raise _error(error, "read", path) from error

    def _room(self, size: int) -> memoryview:
        if size > SCRATCH_BYTES_MAX:
            return memoryview(bytearray(size))
        kept: bytearray | None = getattr(self._scratch, "kept", None)
        if kept is None or len(kept) < size:
            kept = self._scratch.kept = bytearray(size)
        return memoryview(kept)[:size]

    def _path(self, name: str) -> Path:
        # Names come back from the metadata store: one that leads out of the folder must not be followed.
        if parse_segment_name(name) is None:
            raise Rejected(f"{name!r} is no segment's name")
        return self._folder / name


class DiskSegment:
    """One file, its thread, and how far it is durable."""

    def __init__(self, path: Path, on_close: Callable[["DiskSegment"], None]) -> None:
        self.name = path.name
        self._path = path
        self._on_close = on_close
        self._thread = Beside(f"wal-append-{path.name}")
        self._file: OpenFile | None = None
        self._size = 0
        self._broken: str | None = None
        self._closed = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def broken(self) -> bool:
        return self._broken is not None

    async def open(self) -> OpenFile:
        self._file = await self._thread.do(self._create)
        return self._file

    async def append(self, buffers: Sequence[Buffer]) -> None:
        if self._broken is not None or self._closed:
            raise Unavailable(
                f"{self._path} takes no more appends ({self._broken or 'closed'}): write to a new segment"
            )
        try:
            await self._thread.do(lambda: self._append(buffers))
        except asyncio.CancelledError:
            self._broken = "an append was cancelled"
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        try:
            await self._thread.do(self._close)
        finally:
            self._thread.close()

    # Below: on the file's own thread.

    def _create(self) -> OpenFile:
        folder = self._path.parent
        try:
            _make_folder(folder)
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
            file = OpenFile(descriptor, str(self._path))
            _sync_folder(folder)
            return file
        except FileExistsError:
            raise Conflict(f"{self._path} exists already") from None
        except OSError as error:
            raise _error(error, "create", self._path) from error

    def _append(self, buffers: Sequence[Buffer]) -> None:
        if self._broken is not None:
            raise Unavailable(f"{self._path} takes no more appends ({self._broken}): write to a new segment")
        assert self._file is not None, "open it first"
        descriptor = self._file.descriptor
        try:
            end = _write_all(descriptor, buffers, self._size)
        except OSError as error:
            self._cut_back(descriptor)
            raise _error(error, "append to", self._path) from error
        try:
            _sync_data(descriptor)
        except OSError as error:
            # The kernel may have dropped the pages that it could not write and will report success the next time:
            # what this file holds beyond `size` can never be known again.
            self._broken = f"sync failed: {error.strerror}"
            raise _error(error, "sync", self._path) from error
        self._size = end

    def _cut_back(self, descriptor: int) -> None:
        """Remove what a failed append left, so that the next one finds the file as it was."""
        try:
            os.ftruncate(descriptor, self._size)
        except OSError as error:
            self._broken = f"cannot be cut back after a failed append: {error.strerror}"

    def _close(self) -> None:
        self._file = None  # closed when nothing more is sent from it


async def _in_thread(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _write_all(file: int, buffers: Sequence[Buffer], position: int) -> int:
    """Write them all at `position` without joining them; the new end."""
    for first in range(0, len(buffers), _IOV_MAX):
        rest = list(buffers[first : first + _IOV_MAX])
        while rest:
            written = os.pwritev(file, rest, position)
            position += written
            rest = _after(rest, written)
            if rest and not written:
                raise OSError(errno.EIO, "the disk takes no more bytes")
    return position


def _after(buffers: list[Buffer], written: int) -> list[Buffer]:
    """What is left of them after `written` bytes: the system may take less than it was given."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []


def _opened(path: Path) -> OpenFile:
    try:
        return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), str(path))
    except FileNotFoundError:
        raise Missing(f"segment {path} is not there") from None
    except OSError as error:
        raise _error(error, "open", path) from error


def _read(path: Path, spans: Sequence[Span], allocate: Callable[[int], memoryview] | None) -> list[Buffer]:
    file = _opened(path)
    try:
        size = os.fstat(file.descriptor).st_size
        return [_read_span(file.descriptor, span, size, path, allocate) for span in spans]
    except OSError as error:
        raise _error(error, "read", path) from error


def _check_span(span: Span, size: int, path: Path) -> None:
    if not 0 <= span.start <= span.end <= size:
        raise OutOfRange(f"bytes {span.start} to {span.end} of {path} do not exist: it has {size}")


def _read_span(
    descriptor: int, span: Span, size: int, path: Path, allocate: Callable[[int], memoryview] | None
) -> Buffer:
    _check_span(span, size, path)
    if allocate is not None:
        room = allocate(span.size)
    elif len(data := os.pread(descriptor, span.size, span.start)) == span.size:
        return data
    else:
        room = memoryview(bytearray(span.size))  # rare: a signal, or more than 2 GiB
    _read_into(descriptor, room, span, path)
    return room


def _read_into(descriptor: int, room: memoryview, span: Span, path: Path) -> None:
    filled = 0
    while filled < span.size:
        count = os.preadv(descriptor, [room[filled:]], span.start + filled)
        if not count:
            raise OutOfRange(f"bytes {span.start} to {span.end} of {path} do not exist: it was cut off meanwhile")
        filled += count


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise Missing(f"segment {path} is not there") from None
    except OSError as error:
        raise _error(error, "look at", path) from error


def _walk(folder: Path) -> list[SegmentInfo]:
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if parse_segment_name(entry.name) is None:
                    continue
                with contextlib.suppress(FileNotFoundError):  # swept meanwhile
                    stat = entry.stat()
                    found.append(SegmentInfo(entry.name, stat.st_size, stat.st_mtime_ns // 1_000_000))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _error(error, "list", folder) from error
    return sorted(found)


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _error(error, "delete", path) from error


def _make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """A new file survives a power cut only if its folder's entry does."""
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _error(error: OSError, doing: str, path: Path) -> LakestreamError:
    if error.errno in _FULL:
        return Unavailable(f"cannot {doing} {path}: the disk is full ({error.strerror}): free space or move --wal-dir")
    if error.errno in _NOT_OURS:
        return Misconfigured(f"cannot {doing} {path}: {error.strerror}: check --wal-dir and its rights")
    return Unavailable(f"cannot {doing} {path}: {error.strerror}")


async def try_out(files: SegmentFiles, clock: Clock, ids: Ids) -> None:
    """Asked once at the start: can a segment be made, appended to, read and deleted here?"""
    name = segment_name(clock.now_ms(), ids.new()[:16], 0)
    segment = await files.create(name)
    try:
        await segment.append([b"lakestream ", b"probe"])
        (found,) = await files.read(name, [Span(0, 16)])
        if found != b"lakestream probe":
            raise Misconfigured(f"segment {name} gave back other bytes than were written: this disk cannot be used")
    finally:
        await segment.close()
        await files.delete([name])
