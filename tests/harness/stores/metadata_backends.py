"""Metadata stores for the contract tests: name → a context manager that yields a `Backend`.

A new backend adds one entry to `BACKENDS`. Tests may share servers: each test uses its own root.
"""

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lakestream.clock import SystemClock
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.oxia import OxiaSettings, OxiaStore
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import MetadataStore
from lakestream.testing.servers import OxiaServer, start_oxia_standalone

T = TypeVar("T")


class RemoteClient(Protocol):
    """Client on another machine, which the test can freeze: it sends nothing, and does not detect that."""

    async def run(self, work: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
        """Runs `work` with the store of that machine."""

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    open: Callable[[], Awaitable[MetadataStore]]
    """Opens another, independent client of the same store, which is closed at the end of the block."""
    remote_client: Callable[[], AbstractAsyncContextManager[RemoteClient]]
    session_ms: int
    """A short session timeout that a live client keeps on a busy machine."""


class Clients:
    """Clients that are closed at the end; a client that the test has closed is closed again."""

    def __init__(self, open_one: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._open_one = open_one
        self._opened: list[MetadataStore] = []

    async def open(self) -> MetadataStore:
        client = await self._open_one()
        self._opened.append(client)
        return client

    async def close(self) -> None:
        for client in self._opened:
            await client.close()


class MemoryRemoteClient:
    def __init__(self, store: MemoryMetadataStore) -> None:
        self._store = store

    async def run(self, work: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
        return await work(self._store)

    def freeze(self) -> None:
        self._store.silence()

    def thaw(self) -> None:
        self._store.resume()


class ThreadRemoteClient:
    """Client on an event loop of its own, which blocks while the client is frozen."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: MetadataStore) -> None:
        self._loop = loop
        self._store = store
        self._running = threading.Event()

    async def run(self, work: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
        return await on_loop(self._loop, work(self._store))

    def freeze(self) -> None:
        self._running.clear()
        self._loop.call_soon_threadsafe(self._running.wait, 60)

    def thaw(self) -> None:
        self._running.set()


async def on_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@asynccontextmanager
async def thread_client(
    open_one: Callable[[], Coroutine[Any, Any, MetadataStore]],
) -> AsyncIterator[RemoteClient]:
    with loop_in_thread() as loop:
        store = await on_loop(loop, open_one())
        client = ThreadRemoteClient(loop, store)
        try:
            yield client
        finally:
            client.thaw()
            await on_loop(loop, store.close())


@asynccontextmanager
async def memory(folder: Path) -> AsyncIterator[Backend]:
    server = MemoryServer(SystemClock())

    async def open_one() -> MetadataStore:
        return server.client()

    @asynccontextmanager
    async def remote_client() -> AsyncIterator[RemoteClient]:
        store = server.client()
        yield MemoryRemoteClient(store)
        await store.close()

    clients = Clients(open_one)
    yield Backend(open=clients.open, remote_client=remote_client, session_ms=200)
    await clients.close()


@asynccontextmanager
async def sqlite(folder: Path) -> AsyncIterator[Backend]:
    async def open_one() -> MetadataStore:
        return await SqliteStore.open(folder / "metadata.db", SystemClock())

    clients = Clients(open_one)
    yield Backend(open=clients.open, remote_client=lambda: thread_client(open_one), session_ms=2_500)
    await clients.close()


class SharedOxia:
    """Servers that all tests of a run use, started at the first use and stopped by conftest.py."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._servers: dict[int, OxiaServer] = {}

    async def server(self, shards: int) -> OxiaServer:
        if shards not in self._servers:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="oxia-"))
            self._servers[shards] = await start_oxia_standalone(Path(folder), shards)
            self._stack.callback(self._servers[shards].process.kill)
        return self._servers[shards]

    def close(self) -> None:
        self._stack.close()
        self._servers.clear()


SHARED_OXIA = SharedOxia()


@asynccontextmanager
async def oxia(shards: int, folder: Path) -> AsyncIterator[Backend]:
    server = await SHARED_OXIA.server(shards)

    async def open_one() -> MetadataStore:
        return await OxiaStore.open(OxiaSettings.from_url(server.url))

    clients = Clients(open_one)
    yield Backend(open=clients.open, remote_client=lambda: thread_client(open_one), session_ms=2_000)
    await clients.close()


BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "memory": memory,
    "sqlite": sqlite,
    "oxia-1": partial(oxia, 1),
    "oxia-4": partial(oxia, 4),
}
