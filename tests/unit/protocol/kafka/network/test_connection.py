"""Tests of connections: frames split at any byte, responses in order, and the limits over all connections."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from lakestream.model import KiB, MiB
from lakestream.protocol.kafka.network.connection import Connection, ResponseBytes
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Responds with the size of each request while `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.started = 0

    async def __call__(self, connection: Connection, frame: bytes | memoryview) -> ResponseBytes:
        self.started += 1
        await self.go.wait()
        return [framed(f"{len(frame)}".encode())]


@asynccontextmanager
async def serving(settings: ServerSettings, echo: Echo) -> AsyncIterator[tuple[KafkaServer, int]]:
    server = KafkaServer(settings)
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(echo)
    try:
        yield server, port
    finally:
        await server.stop()
        await asyncio.sleep(0)


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await asyncio.sleep(0.01)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


async def read_response(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(10):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return int(await reader.readexactly(size))


async def until_quiet(server: KafkaServer) -> int:
    """Waits until the bytes in flight and arriving no longer change, and returns them."""
    previous = -1
    async with asyncio.timeout(10):
        while previous != (current := server.bytes_in_flight + server.arriving_bytes):
            previous = current
            await asyncio.sleep(0.15)
    return previous


@pytest.mark.parametrize("size", [1, 65_532, 65_533, MiB, MiB + 1, 5 * MiB, 17 * MiB])
async def test_requests_are_read_completely_for_any_size_and_split(size: int) -> None:
    async with serving(ServerSettings(), Echo()) as (server, port), connected(port) as (reader, writer):
        for cut in (1, 4, 5, 70_000, len(framed(bytes(size))) - 1):
            data = framed(bytes(size))
            writer.write(data[:cut])
            await asyncio.sleep(0.01)
            writer.write(data[cut:] + framed(b"next"))
            assert [await read_response(reader), await read_response(reader)] == [size, 4]
        assert server.bytes_in_flight == 0
        assert not server.arriving


async def test_buffer_is_not_reserved_when_only_the_size_of_a_request_has_arrived() -> None:
    async with serving(ServerSettings(), Echo()) as (server, port), connected(port) as (_, writer):
        writer.write((90 * MiB).to_bytes(4, "big") + b"incomplete")
        assert await until_quiet(server) == MiB
        writer.transport.abort()
        assert await until_quiet(server) == 0


async def test_buffers_stay_within_the_limit_of_the_broker_when_many_requests_are_large() -> None:
    """Incomplete requests fill the broker; the oldest one still completes, and then the rest."""
    settings = ServerSettings(broker_bytes_max=6 * MiB)
    async with serving(settings, Echo()) as (server, port), AsyncExitStack() as opened:
        half = [await opened.enter_async_context(connected(port)) for _ in range(6)]
        body = framed(bytes(4 * MiB))
        for _, writer in half:
            writer.write(body[: 3 * MiB])
        assert 6 * MiB <= await until_quiet(server) <= 10 * MiB
        async with connected(port) as (reader, writer):
            writer.write(framed(b"small"))
            assert await read_response(reader) == 5
        for _, writer in half:
            writer.write(body[3 * MiB :])
        for reader, _ in half:
            assert await read_response(reader) == 4 * MiB
        assert server.bytes_in_flight == server.arriving_bytes == 0
        await opened.aclose()
        assert not server.waiting
        assert not server.waiting_for_space
        assert not server.arriving


async def test_small_requests_wait_when_the_broker_is_full() -> None:
    settings, echo = ServerSettings(broker_bytes_max=200 * KiB), Echo()
    echo.go.clear()
    async with serving(settings, echo) as (server, port), AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(connected(port)) for _ in range(20)]
        for _, writer in clients:
            writer.write(framed(bytes(50 * KiB)))
            writer.write(framed(bytes(50 * KiB)))
        await until_quiet(server)
        assert echo.started < 40
        echo.go.set()
        for reader, _ in clients:
            assert [await read_response(reader), await read_response(reader)] == [50 * KiB, 50 * KiB]


async def test_stalled_client_is_disconnected_when_another_client_needs_its_buffer() -> None:
    settings = ServerSettings(broker_bytes_max=2 * MiB, stalled_ms_max=100)
    async with serving(settings, Echo()) as (_, port), connected(port) as (stalled, writer):
        writer.write(framed(bytes(3 * MiB))[: 2 * MiB])
        await asyncio.sleep(0.05)
        async with connected(port) as (reader, other):
            other.write(framed(bytes(2 * MiB)))
            assert await read_response(reader) == 2 * MiB
        with suppress(ConnectionResetError):
            assert await stalled.read(1) == b""


async def test_connection_is_closed_when_its_request_is_cancelled() -> None:
    """Otherwise this and all later requests would have no response, and the broker would not stop."""

    class Cancelling(Echo):
        async def __call__(self, connection: Connection, frame: bytes | memoryview) -> ResponseBytes:
            if len(frame) == 1:
                raise asyncio.CancelledError  # as of a task that it waits for
            return await super().__call__(connection, frame)

    async with serving(ServerSettings(), Cancelling()) as (server, port), connected(port) as (reader, writer):
        writer.write(framed(b"12"))
        assert await read_response(reader) == 2
        writer.write(framed(b"1") + framed(b"12"))
        with suppress(ConnectionResetError):
            async with asyncio.timeout(5):
                assert await reader.read(1) == b""
        async with asyncio.timeout(5):
            await server.stop()


async def test_closed_connection_is_freed_without_the_garbage_collector() -> None:
    """Each connection has a buffer, and the collector runs rarely in a broker: it would keep hundreds of megabytes."""
    gc.disable()
    try:
        async with serving(ServerSettings(), Echo()) as (server, port):
            for data in (framed(b"whole"), b"\0\0", framed(bytes(MiB))[:-1], b"\xff" * 8):
                async with connected(port) as (_, writer):
                    writer.write(data)
                    await asyncio.sleep(0.02)
                    references = [weakref.ref(connection) for connection in server.connections]
                await asyncio.sleep(0.02)
                assert [ref() for ref in references if ref() is not None] == []
    finally:
        gc.enable()
