"""Blocking file operations of FileStore: atomic, synced writes of whole files, and errors in Lakestream's classes.

Called in threads by local_store.py. Safe for concurrent calls from several threads, and from several processes on one
folder.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lakestream.clock import Clock, Ids
from lakestream.errors import Conflict, LakestreamError, Misconfigured, Missing, Rejected, Unavailable, Uncertain
from lakestream.model import Buffer, Span
from lakestream.storage.direct_io import DIRECT_SIZE_MIN, write_direct
from lakestream.storage.object_keys import TEMPORARY_PREFIX, check_key, folder
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.range_reads import beyond

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FOLDER_CONFLICT = {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY}
_NO_LINKS = {errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def translate(error: OSError, action: str, *, writing: bool) -> LakestreamError:
    """Returns the error for an OSError. A write that failed before its rename is never Uncertain: it has no effect."""
    code, reason = error.errno, error.strerror or type(error).__name__
    if code in _FULL:
        return Unavailable(f"disk full: cannot {action}: {reason}. Free space on that disk; no stored data is lost")
    if code in _NOT_ALLOWED:
        return Misconfigured(f"cannot {action}: {reason}. Give this user the right to read and write there")
    if writing and code in _NO_LINKS:
        return Misconfigured(f"cannot {action}: {reason}. The storage folder must be on a file system with hard links")
    if writing and code in _FOLDER_CONFLICT:
        return Rejected(f"cannot {action}: {reason}. A key cannot be the folder of another key")
    if not writing and (code == errno.ENOENT or code in _FOLDER_CONFLICT):
        return Missing(f"cannot {action}: no such object")
    return Unavailable(f"cannot {action}: {reason}")


_IOV_MAX = os.sysconf("SC_IOV_MAX")
_TEMPORARY_AGE_MS_MAX = 3_600_000
_SYNCED_FOLDERS_MAX = 10_000


class Disk:
    def __init__(self, root: Path, clock: Clock, ids: Ids) -> None:
        self._root = root.absolute()
        self._clock = clock
        self._ids = ids
        self._synced_folders: set[Path] = set()

    def write(self, key: str, body: Body, *, overwrite: bool) -> None:
        target = self._path(key)
        temporary = target.parent / f"{TEMPORARY_PREFIX}{self._ids.new()}"
        with _translated_errors(f"write {target}", writing=True):
            try:
                self._write_temporary(temporary, body)
                _publish(temporary, target, key, overwrite=overwrite)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        _make_name_durable(target)

    def read(self, key: str) -> Buffer:
        with self._open(key) as file:
            return _read_span(file, key, Span(0, os.fstat(file).st_size))

    def read_spans(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        with self._open(key) as file:
            size = os.fstat(file).st_size
            for span in spans:
                if span.end > size:
                    raise beyond(key, span, size)
            return [_read_span(file, key, span) for span in spans]

    def head(self, key: str) -> ObjectInfo:
        with self._open(key) as file:
            return _info(key, os.fstat(file))

    def remove(self, keys: Sequence[str]) -> None:
        """Deletes the objects. Folders stay, because another writer may be about to use them."""
        parents = set()
        for key in keys:
            path = self._path(key)
            with (
                _translated_errors(f"delete {path}"),
                suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError),
            ):
                path.unlink()
                parents.add(path.parent)
        for parent in parents:
            with _translated_errors(f"sync {parent}"):
                _sync_folder(parent)

    def objects(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Yields the objects under the prefix with a greater key than `after`, in order of key."""
        return self._objects_in(folder(prefix), after)

    def _objects_in(self, start: str, after: str) -> Iterator[ObjectInfo]:
        for name, is_folder in self._names_in(start):
            key = f"{start}{name}"
            if is_folder:
                # All keys in a folder start with its name, so one comparison can skip the whole folder.
                if f"{key}/" > after or after.startswith(f"{key}/"):
                    yield from self._objects_in(f"{key}/", after)
            elif key > after and (info := self._head_or_none(key)):
                yield info

    def _names_in(self, start: str) -> list[tuple[str, bool]]:
        """Returns the names in a folder in the order of their keys, for which a folder's name ends with a slash."""
        names = []
        path = self._root / start
        with (
            _translated_errors(f"list {path}"),
            suppress(FileNotFoundError, NotADirectoryError),
            os.scandir(path) as entries,
        ):
            for entry in entries:
                if entry.name.startswith(TEMPORARY_PREFIX):
                    self._remove_if_old(entry)
                elif entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                    names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        return sorted(names, key=lambda name: name[0] + "/" if name[1] else name[0])

    def _remove_if_old(self, entry: "os.DirEntry[str]") -> None:
        """Deletes an old temporary file. A writer that still uses it fails before it has stored anything."""
        with suppress(OSError):
            if self._clock.now_ms() - entry.stat().st_mtime_ns // 1_000_000 > _TEMPORARY_AGE_MS_MAX:
                os.unlink(entry.path)

    def _head_or_none(self, key: str) -> ObjectInfo | None:
        try:
            with _translated_errors(f"read metadata of {key}"):
                return _info(key, (self._root / key).lstat())
        except Missing:
            return None

    def _write_temporary(self, temporary: Path, body: Body) -> None:
        self._ensure_folder(temporary.parent)
        try:
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:
            # The folder was removed after it was synced, and maybe its parents too.
            self._synced_folders.clear()
            self._ensure_folder(temporary.parent)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_all(file, body)
            os.fsync(file)
        finally:
            os.close(file)

    def _ensure_folder(self, path: Path) -> None:
        """Creates the folder, durably. An existing folder is synced too: its creator may not have synced it yet."""
        if path in self._synced_folders:
            return
        if (path != self._root and path.is_relative_to(self._root)) or not path.parent.is_dir():
            self._ensure_folder(path.parent)
        if path == self._root and path.exists() and not path.is_dir():
            raise Misconfigured(f"storage folder {path} is a file: give the URL of a folder")
        path.mkdir(exist_ok=True)
        # This user may not be allowed to open the parent of the root; then another user created the root.
        with suppress(PermissionError):
            _sync_folder(path.parent)
        if len(self._synced_folders) >= _SYNCED_FOLDERS_MAX:
            self._synced_folders.clear()
        self._synced_folders.add(path)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    @contextmanager
    def _open(self, key: str) -> Iterator[int]:
        path = self._path(key)
        with _translated_errors(f"read {path}"):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise Missing(f"no object {key}: {path} is a folder")
                yield file
            finally:
                os.close(file)


def _publish(temporary: Path, target: Path, key: str, *, overwrite: bool) -> None:
    """Gives the complete file its name, in one atomic step."""
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # a rename would replace an object that another writer has just created
    except FileExistsError:
        raise Conflict(f"object {key} already exists") from None
    with suppress(OSError):
        temporary.unlink()


def _make_name_durable(target: Path) -> None:
    try:
        _sync_folder(target.parent)
    except OSError as error:
        raise Uncertain(f"{target} is written, but its folder could not be synced: {error.strerror}") from error


def _write_all(file: int, body: Body) -> None:
    """Writes all buffers without joining them, as many per call as the system allows. Continues after short writes."""
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


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


@contextmanager
def _translated_errors(action: str, *, writing: bool = False) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate(error, action, writing=writing) from error
