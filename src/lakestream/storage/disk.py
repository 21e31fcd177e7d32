"""What FileStore does to the disk, in plain blocking calls: whole files that are there or are not, and are synced.

Called in threads by file.py; safe to call from several at once and from several processes on one folder.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lakestream.clock import Clock, Ids
from lakestream.errors import Conflict, Misconfigured, Missing, Uncertain
from lakestream.model import Buffer, Span
from lakestream.storage.direct import DIRECT_SIZE_MIN, write_direct
from lakestream.storage.disk_errors import translate
from lakestream.storage.names import TEMPORARY_PREFIX, check_key, folder
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.ranges import beyond

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_TEMPORARY_AGE_MS_MAX = 3_600_000
_FOLDERS_REMEMBERED_MAX = 10_000


class Disk:
    def __init__(self, root: Path, clock: Clock, ids: Ids) -> None:
        self._root = root.absolute()
        self._clock = clock
        self._ids = ids
        self._synced_folders: set[Path] = set()

    def write(self, key: str, body: Body, *, overwrite: bool) -> None:
        target = self._path(key)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{self._ids.new()}"
        with _errors_of(f"write {target}", writing=True):
            try:
                self._write_temporary(temporary, body)
                _show(temporary, target, key, overwrite=overwrite)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        _make_name_durable(target)

    def read(self, key: str) -> Buffer:
        with self._opened(key) as file:
            return _read_span(file, key, Span(0, os.fstat(file).st_size))

    def read_spans(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        with self._opened(key) as file:
            size = os.fstat(file).st_size
            for span in spans:
                if span.end > size:
                    raise beyond(key, span, size)
            return [_read_span(file, key, span) for span in spans]

    def look(self, key: str) -> ObjectInfo:
        with self._opened(key) as file:
            return _info(key, os.fstat(file))

    def remove(self, keys: Sequence[str]) -> None:
        """Folders stay: another writer may be about to use them."""
        parents = set()
        for key in keys:
            path = self._path(key)
            with _errors_of(f"delete {path}"), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                path.unlink()
                parents.add(path.parent)
        for parent in parents:
            with _errors_of(f"sync {parent}"):
                _sync_folder(parent)

    def objects(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """All objects under the prefix with a greater key than `after`, in order of key."""
        start = folder(prefix)
        return self._objects_in(start, after)

    def _objects_in(self, start: str, after: str) -> Iterator[ObjectInfo]:
        for name, is_folder in self._names_in(start):
            key = f"{start}{name}"
            if is_folder:
                # Whatever lies in a folder starts with its name, so one look tells whether all of it is too small.
                if f"{key}/" > after or after.startswith(f"{key}/"):
                    yield from self._objects_in(f"{key}/", after)
            elif key > after and (found := self._look_if_there(key)):
                yield found

    def _names_in(self, start: str) -> list[tuple[str, bool]]:
        """Names in one folder as the keys below them sort: a folder's slash is part of its name."""
        names = []
        path = self._root / start
        with _errors_of(f"list {path}"), suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith(TEMPORARY_PREFIX):
                    self._remove_if_old(entry)
                elif entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                    names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return sorted(names, key=lambda found: found[0] + "/" if found[1] else found[0])

    def _remove_if_old(self, entry: "os.DirEntry[str]") -> None:
        """A writer that still wanted this file finds it gone and fails before anything was shown: nothing is lost."""
        with suppress(OSError):
            if self._clock.now_ms() - entry.stat().st_mtime_ns // 1_000_000 > _TEMPORARY_AGE_MS_MAX:
                os.unlink(entry.path)

    def _look_if_there(self, key: str) -> ObjectInfo | None:
        try:
            with _errors_of(f"look at {key}"):
                return _info(key, (self._root / key).lstat())
        except Missing:
            return None

    def _write_temporary(self, temporary: Path, body: Body) -> None:
        self._ensure_folder(temporary.parent)
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            # Somebody removed the folder since we saw it, and who knows which of those above it.
            self._synced_folders.clear()
            self._ensure_folder(temporary.parent)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, body)
            os.fsync(file)
        finally:
            os.close(file)

    def _ensure_folder(self, path: Path) -> None:
        """The folder is there, and its name survives a power cut. Synced also when it was there before: whoever made it
        may not have come to that yet."""
        if path in self._synced_folders:
            return
        if (path != self._root and path.is_relative_to(self._root)) or not path.parent.is_dir():
            self._ensure_folder(path.parent)
        if path == self._root and path.exists() and not path.is_dir():
            raise Misconfigured(f"storage folder {path} is a file: give the URL of a folder")
        path.mkdir(exist_ok=True)
        # The folder above the root may be one that we may not open; then its owner made the root.
        with suppress(PermissionError):
            _sync_folder(path.parent)
        if len(self._synced_folders) >= _FOLDERS_REMEMBERED_MAX:
            self._synced_folders.clear()
        self._synced_folders.add(path)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _opened(self, key: str) -> Iterator[int]:
        path = self._path(key)
        with _errors_of(f"read {path}"):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise Missing(f"no object {key}: {path} is a folder")
                yield file
            finally:
                os.close(file)


def _show(temporary: Path, target: Path, key: str, *, overwrite: bool) -> None:
    """Give the finished file its name, in one step that nobody sees half of."""
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # a rename would replace what another creator has just put there
    except FileExistsError:
        raise Conflict(f"object {key} exists already") from None
    with suppress(OSError):
        temporary.unlink()


def _make_name_durable(target: Path) -> None:
    try:
        _sync_folder(target.parent)
    except OSError as error:
        raise Uncertain(f"{target} is written, but its folder could not be synced: {error.strerror}") from error


def _write_all(file: int, body: Body) -> None:
    """All buffers, small ones not joined: as many per call as the system takes, going on where a short write ended."""
    left = [memoryview(buffer).cast("B") for buffer in body if len(buffer)]
    if sum(map(len, left)) >= DIRECT_SIZE_MIN:
        return write_direct(file, left)
    first = 0
    while first < len(left):
        written = os.writev(file, left[first : first + _IOV_MAX])
        while first < len(left) and written >= len(left[first]):
            written -= len(left[first])
            first += 1
        if written:
            left[first] = left[first][written:]


def _read_span(file: int, key: str, span: Span) -> Buffer:
    first = os.pread(file, span.size, span.start)
    if len(first) == span.size:
        return first
    pieces = [first]  # one call reads less than 2 GiB
    while (done := sum(map(len, pieces))) < span.size:
        pieces.append(os.pread(file, span.size - done, span.start + done))
        if not pieces[-1]:
            raise beyond(key, span, span.start + done)
    return b"".join(pieces)


def _sync_folder(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, found.st_mtime_ns // 1_000_000)


@contextmanager
def _errors_of(doing: str, *, writing: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error, doing, writing=writing) from error
