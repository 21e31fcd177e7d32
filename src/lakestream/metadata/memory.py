"""Metadata store in memory, for unit tests and the simulation: no threads, no files, deterministic.

`MemoryServer` has the data that all clients share; `MemoryMetadataStore` is a client. Operations take effect
immediately and never wait. Faults (delay, loss, duplication) are added by wrapping a client.
"""

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from lakestream.clock import Clock
from lakestream.errors import Conflict, Missing, Rejected, Unavailable
from lakestream.metadata.store import (
    ABSENT,
    ANY,
    Changes,
    Create,
    Created,
    Folder,
    Key,
    Put,
    Record,
    Scanned,
    Session,
    Stored,
)
from lakestream.metadata.watchers import Watchers

CLOSED = "metadata store: this client is closed"


@dataclass(frozen=True, slots=True)
class StoredEntry:
    record: Record
    session: "MemorySession | None"


@dataclass(slots=True)
class FolderNames:
    """The names of one folder, in order."""

    ordered: list[str] = field(default_factory=list)

    def between(self, start: str, end: str | None) -> list[str]:
        stop = len(self.ordered) if end is None else bisect_left(self.ordered, end)
        return self.ordered[bisect_left(self.ordered, start) : stop]


class MemoryServer:
    """Data that all clients share."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._entries: dict[str, StoredEntry] = {}
        self._folders: dict[str, FolderNames] = {}
        self._version = 0
        self._clients: dict[MemoryMetadataStore, None] = {}

    def client(self) -> "MemoryMetadataStore":
        client = MemoryMetadataStore(self)
        self._clients[client] = None
        return client

    def snapshot(self) -> "MemoryServer":
        """Returns a copy that later changes do not affect: the state of a leader that was just deposed."""
        copy = MemoryServer(self.clock)
        copy._entries = dict(self._entries)
        copy._folders = {path: FolderNames(list(names.ordered)) for path, names in self._folders.items()}
        copy._version = self._version
        return copy

    def remove(self, client: "MemoryMetadataStore") -> None:
        self._clients.pop(client, None)

    def get(self, path: str) -> Record | None:
        entry = self._entries.get(path)
        return entry.record if entry else None

    def names(self, folder: str) -> FolderNames:
        return self._folders.get(folder) or FolderNames()

    def put(self, put: Put) -> Stored | Conflict | Missing:
        session = put.session
        assert session is None or isinstance(session, MemorySession)
        if session is not None and session.lost:
            return Missing(f"{put.key.path}: its session has ended: open another")
        path = put.key.path
        record = self.get(path)
        if put.expected is not ANY and put.expected != (record.version if record else ABSENT):
            return conflict(path, record)
        self._version += 1
        created_ms = record.created_ms if record else self.clock.now_ms()
        if record is None:
            folder, _, name = path.rpartition("/")
            insort(self._folders.setdefault(folder, FolderNames()).ordered, name)
        self._entries[path] = StoredEntry(Record(path, bytes(put.value), self._version, created_ms), session)
        self._notify([path])
        return Stored(self._version, created_ms)

    def delete(self, path: str) -> None:
        del self._entries[path]
        folder, _, name = path.rpartition("/")
        ordered = self._folders[folder].ordered
        del ordered[bisect_left(ordered, name)]
        if not ordered:
            del self._folders[folder]
        self._notify([path])

    def delete_of(self, session: "MemorySession") -> None:
        for path in [path for path, entry in self._entries.items() if entry.session is session]:
            self.delete(path)

    def _notify(self, paths: list[str]) -> None:
        for client in self._clients:
            client.watchers.notify(paths)


class MemorySession:
    """Ends when it is closed, or after its client was silent for `timeout_ms` of the loop's time."""

    def __init__(self, server: MemoryServer, timeout_ms: int) -> None:
        self._server = server
        self._timeout_ms = timeout_ms
        self._lost = asyncio.Event()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def lost(self) -> bool:
        return self._lost.is_set()

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def close(self) -> None:
        self.end()

    def stop_heartbeats(self) -> None:
        if self._expiry is None and not self.lost:
            self._expiry = asyncio.get_running_loop().call_later(self._timeout_ms / 1000, self.end)

    def resume_heartbeats(self) -> None:
        """Keeps the session alive if it has not expired yet."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def end(self) -> None:
        self.resume_heartbeats()
        self._lost.set()
        self._server.delete_of(self)


class MemoryMetadataStore:
    """A client. After `silence`, the server sees it like a client that was killed, paused or disconnected."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._sessions: list[MemorySession] = []
        self._silent = False
        self._closed = False
        self.watchers = Watchers()

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        self._check_open()
        return self._server.get(key.path)

    async def floor(self, folder: Folder, name: str) -> Record | None:
        self._check_open()
        ordered = self._server.names(folder.path).ordered
        index = bisect_right(ordered, name)
        return self._server.get(f"{folder.path}/{ordered[index - 1]}") if index else None

    async def ceiling(self, folder: Folder, name: str) -> Record | None:
        self._check_open()
        ordered = self._server.names(folder.path).ordered
        index = bisect_left(ordered, name)
        return self._server.get(f"{folder.path}/{ordered[index]}") if index < len(ordered) else None

    async def scan(
        self,
        folder: Folder,
        start: str = "",
        end: str | None = None,
        *,
        limit: int | None = None,
        guard: Key | None = None,
        confirmed: bool = False,
    ) -> Scanned:
        self._check_open()
        names = self._server.names(folder.path).between(start, end)[:limit]
        records = [record for name in names if (record := self._server.get(f"{folder.path}/{name}"))]
        return Scanned(records, self._server.get(guard.path) if guard else None)

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        if self._closed:
            return [Unavailable(CLOSED) for _ in puts]
        return [self._server.put(put) for put in puts]

    async def create(self, creates: Sequence[Create]) -> list[Created | Conflict | Unavailable]:
        if self._closed:
            return [Unavailable(CLOSED) for _ in creates]
        return [self._create(create) for create in creates]

    def _create(self, create: Create) -> Created | Conflict:
        stored = self._server.put(Put(create.key, create.value, ABSENT))
        if isinstance(stored, Stored):
            return Created(stored.version, stored.created_ms, self._server.get(create.guard.path))
        assert isinstance(stored, Conflict), "a create has no session that could be missing"
        return stored

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        self._check_open()
        record = self._server.get(key.path)
        if record is None:
            return False
        if expected is not ANY and record.version != expected:
            raise conflict(key.path, record)
        self._server.delete(key.path)
        return True

    async def delete_range(self, folder: Folder, start: str, end: str) -> None:
        self._check_open()
        for name in self._server.names(folder.path).between(start, end):
            self._server.delete(f"{folder.path}/{name}")

    async def session(self, timeout_ms: int) -> Session:
        self._check_open()
        if timeout_ms <= 0:
            raise Rejected(f"session timeout is {timeout_ms} ms: give a positive one")
        session = MemorySession(self._server, timeout_ms)
        self._sessions = [old for old in self._sessions if not old.lost] + [session]
        if self._silent:
            session.stop_heartbeats()
        return session

    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        self._check_open()
        changes = self.watchers.watch(prefix)
        try:
            async for change in changes:
                yield change
        finally:
            await changes.aclose()

    async def now_ms(self) -> int:
        self._check_open()
        return self._server.clock.now_ms()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._server.remove(self)
        self.watchers.close(CLOSED)
        for session in self._sessions:
            session.end()

    def silence(self) -> None:
        """Stops heartbeats, so that its sessions expire. Its calls still arrive, like those of a zombie."""
        self._silent = True
        for session in self._sessions:
            session.stop_heartbeats()

    def resume(self) -> None:
        """Resumes heartbeats. Sessions that have expired stay lost."""
        self._silent = False
        for session in self._sessions:
            session.resume_heartbeats()

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable(CLOSED)


def conflict(path: str, record: Record | None) -> Conflict:
    return Conflict(f"{path}: is at version {record.version}" if record else f"{path}: does not exist")
