"""Connections: frames however they are cut, answers in order, and limits that hold for all of them together."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from lakestream.model import KiB, MiB
from lakestream.protocol.kafka.server import Answer, Connection, KafkaServer, ServerSettings

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """Answers with the size of each request, when it is told to."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.begun = 0

    async def __call__(self, connection: Connection, frame: bytes | memoryview) -> Answer:
        self.begun += 1
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


async def answer(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(10):
        size = int.from_bytes(await reader.readexactly(4), "big")
        return int(await reader.readexactly(size))


async def until_quiet(server: KafkaServer) -> int:
    """Bytes under way and arriving, when they have not changed for a while."""
    seen = -1
    async with asyncio.timeout(10):
        while seen != (held := server.bytes_in_flight + server.arriving_bytes):
            seen = held
            await asyncio.sleep(0.15)
    return seen


@pytest.mark.parametrize("size", [1, 65_532, 65_533, MiB, MiB + 1, 5 * MiB, 17 * MiB])
async def test_requests_of_any_size_are_taken_whole(size: int) -> None:
    async with serving(ServerSettings(), Echo()) as (server, port), connected(port) as (reader, writer):
        for cut in (1, 4, 5, 70_000, len(framed(bytes(size))) - 1):
            data = framed(bytes(size))
            writer.write(data[:cut])
            await asyncio.sleep(0.01)
            writer.write(data[cut:] + framed(b"next"))
            assert [await answer(reader), await answer(reader)] == [size, 4]
        assert server.bytes_in_flight == 0
        assert not server.arriving


async def test_what_is_only_announced_takes_no_room() -> None:
    async with serving(ServerSettings(), Echo()) as (server, port), connected(port) as (_, writer):
        writer.write((90 * MiB).to_bytes(4, "big") + b"and no more")
        assert await until_quiet(server) == MiB
        writer.transport.abort()
        assert await until_quiet(server) == 0


async def test_all_connections_together_take_no_more_than_the_broker_may() -> None:
    """Requests that are half there fill the broker; the oldest of them still ends, and then the others."""
    settings = ServerSettings(broker_bytes_max=6 * MiB)
    async with serving(settings, Echo()) as (server, port), AsyncExitStack() as opened:
        half = [await opened.enter_async_context(connected(port)) for _ in range(6)]
        body = framed(bytes(4 * MiB))
        for _, writer in half:
            writer.write(body[: 3 * MiB])
        assert 6 * MiB <= await until_quiet(server) <= 10 * MiB
        async with connected(port) as (reader, writer):
            writer.write(framed(b"small"))
            assert await answer(reader) == 5
        for _, writer in half:
            writer.write(body[3 * MiB :])
        for reader, _ in half:
            assert await answer(reader) == 4 * MiB
        assert server.bytes_in_flight == server.arriving_bytes == 0
        await opened.aclose()
        assert not server.waiting
        assert not server.waiting_for_room
        assert not server.arriving


async def test_small_requests_of_many_connections_wait_when_the_broker_is_full() -> None:
    settings, echo = ServerSettings(broker_bytes_max=200 * KiB), Echo()
    echo.go.clear()
    async with serving(settings, echo) as (server, port), AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(connected(port)) for _ in range(20)]
        for _, writer in clients:
            writer.write(framed(bytes(50 * KiB)))
            writer.write(framed(bytes(50 * KiB)))
        await until_quiet(server)
        assert echo.begun < 40
        echo.go.set()
        for reader, _ in clients:
            assert [await answer(reader), await answer(reader)] == [50 * KiB, 50 * KiB]


async def test_a_client_that_stops_half_way_gives_up_its_room_when_others_need_it() -> None:
    settings = ServerSettings(broker_bytes_max=2 * MiB, stalled_ms_max=100)
    async with serving(settings, Echo()) as (_, port), connected(port) as (stalled, writer):
        writer.write(framed(bytes(3 * MiB))[: 2 * MiB])
        await asyncio.sleep(0.05)
        async with connected(port) as (reader, other):
            other.write(framed(bytes(2 * MiB)))
            assert await answer(reader) == 2 * MiB
        with suppress(ConnectionResetError):
            assert await stalled.read(1) == b""


async def test_a_connection_that_is_gone_does_not_wait_for_the_collector() -> None:
    """Each holds a buffer, and the collector of a broker comes rarely: hundreds of megabytes would wait for it."""
    gc.disable()
    try:
        async with serving(ServerSettings(), Echo()) as (server, port):
            for data in (framed(b"whole"), b"\0\0", framed(bytes(MiB))[:-1], b"\xff" * 8):
                async with connected(port) as (_, writer):
                    writer.write(data)
                    await asyncio.sleep(0.02)
                    seen = [weakref.ref(connection) for connection in server.connections]
                await asyncio.sleep(0.02)
                assert [ref() for ref in seen if ref() is not None] == []
    finally:
        gc.enable()
