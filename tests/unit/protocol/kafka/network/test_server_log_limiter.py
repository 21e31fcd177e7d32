"""Tests of rate-limited logging: many failing clients cause a few lines per second, and a count."""

import asyncio
import logging
from contextlib import suppress

import pytest

from lakestream.aio.log_limiter import ClientLogLimiter
from lakestream.protocol.kafka.network.connection import Connection, ResponseBytes
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer


def test_lines_of_an_address_are_logged_when_those_of_another_are_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    limiter = ClientLogLimiter(per_address_max=2, per_kind_max=4)
    assert [limiter.allow("closed", "bad", 10.1) for _ in range(100)].count(True) == 2
    assert limiter.allow("closed", "other", 10.2)
    assert limiter.allow("failed", "bad", 10.3), "lines of another kind are counted separately"
    assert [limiter.allow("closed", f"{number}", 10.4) for number in range(50)].count(True) == 1
    assert caplog.messages == []
    assert limiter.allow("closed", "bad", 11.0), "a new second"
    assert caplog.messages == ["kafka.log_lines_suppressed kind=closed count=147"]
    limiter.log_suppressed(12.0)
    assert len(caplog.messages) == 1, "no line was suppressed in the next second"


def test_memory_is_bounded_when_lines_are_suppressed() -> None:
    limiter = ClientLogLimiter()
    for number in range(10_000):
        limiter.allow("closed", f"{number}", 10.0)
    assert len(limiter._by_address) == 20


async def test_few_lines_and_a_count_are_logged_when_many_connections_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: Connection, frame: bytes | memoryview) -> ResponseBytes:
        raise RuntimeError("a bug")

    count = 120
    server = KafkaServer(ServerSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(fail)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with caplog.at_level(logging.WARNING):
        for number in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\xff\xff\xff\xff" if number % 2 else b"\0\0\0\x01x")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        seconds = int(loop.time()) - int(started_s) + 1
        await asyncio.sleep(2.1)  # the server logs the suppressed count, also without new connections
        await server.stop()
    lines = [line for line in caplog.messages if not line.startswith("kafka.log_lines_suppressed")]
    suppressed = [line for line in caplog.messages if line.startswith("kafka.log_lines_suppressed")]
    assert 0 < len(lines) <= 10 * seconds
    suppressed_count = sum(int(line.partition("count=")[2]) for line in suppressed)
    assert len(lines) + suppressed_count == count
