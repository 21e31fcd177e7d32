"""A flood of bad clients is a few lines per second and a number."""

import asyncio
import logging
from contextlib import suppress

import pytest

from lakestream.protocol.kafka.complaints import Complaints
from lakestream.protocol.kafka.server import Answer, Connection, KafkaServer, ServerSettings


def test_one_address_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints(from_one_max=2, of_one_kind_max=4)
    assert [complaints.allow("closed", "bad", 10.1) for _ in range(100)].count(True) == 2
    assert complaints.allow("closed", "other", 10.2)
    assert complaints.allow("failed", "bad", 10.3), "of another kind"
    assert [complaints.allow("closed", f"{number}", 10.4) for number in range(50)].count(True) == 1
    assert caplog.messages == []
    assert complaints.allow("closed", "bad", 11.0), "a new second"
    assert caplog.messages == ["kafka.unsaid kind=closed lines=147: clients cause more lines than are written"]
    complaints.tell(12.0)
    assert len(caplog.messages) == 1, "nothing was left out in the second after"


def test_what_is_left_out_takes_no_memory() -> None:
    complaints = Complaints()
    for number in range(10_000):
        complaints.allow("closed", f"{number}", 10.0)
    assert len(complaints._said) == 20


async def test_a_flood_of_connections_is_few_lines_that_say_how_many(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: Connection, frame: bytes | memoryview) -> Answer:
        raise RuntimeError("a bug")

    count = 120
    server = KafkaServer(ServerSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(fail)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with caplog.at_level(logging.WARNING):
        for number in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\xff\xff\xff\xff" if number % 2 else b"\0\0\0\x01x")
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        seconds = int(loop.time()) - int(begun_s) + 1
        await asyncio.sleep(2.1)  # the patrol says what was left out, also when nobody comes any more
        await server.stop()
    lines = [line for line in caplog.messages if not line.startswith("kafka.unsaid")]
    unsaid = [line for line in caplog.messages if line.startswith("kafka.unsaid")]
    assert 0 < len(lines) <= 10 * seconds
    left_out = sum(int(line.partition("lines=")[2].partition(":")[0]) for line in unsaid)
    assert len(lines) + left_out == count
