"""A broker that was away, stopped or starved, finds requests of clients that have long gone elsewhere; and a request
whose time is over is answered."""

import asyncio
import socket

import pytest
import uvloop
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving
from tests.unit.protocol.kafka.transaction_scenarios import END, ready

from lakestream.data.wal.buffer import Appended
from lakestream.protocol.kafka import codec
from lakestream.protocol.kafka.deadlines import STEP_S
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.server import KafkaServer, ServerSettings
from lakestream.testing.batches import make_batch


def test_the_end_of_a_transaction_whose_client_is_gone_is_not_taken_for_the_end_of_its_next() -> None:
    """A client of the older protocol has the same epoch in both."""
    uvloop.run(_asked_by_one_who_is_gone())


async def _asked_by_one_who_is_gone() -> None:
    world = World()
    serving = await Serving.open(world)
    server = KafkaServer(ServerSettings())
    try:
        await serving.topic()
        _, port = await server.bind("127.0.0.1", 0)
        await server.serve(serving.dispatcher.handle)
        producer = await ready(serving)
        await producer.add(0)
        end = {"transactional_id": "x", "producer_id": producer.id, "producer_epoch": producer.epoch, "committed": True}
        for stays in (False, True):
            with socket.create_connection(("127.0.0.1", port)) as client:
                await asyncio.sleep(0.05)
                client.sendall(codec.write_request(END, 3, 7, "tester", end))  # the loop sees nothing of it before …
                if not stays:
                    client.close()
                await asyncio.sleep(0.1)
                async with asyncio.timeout(10):
                    while await _is_open(serving) == stays:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
    finally:
        await server.stop()
        await serving.close()
        await world.close()


async def _is_open(serving: Serving) -> bool:
    found = await serving.services.transactions.describe("x")
    assert found is not None
    return found.is_open


@pytest.mark.parametrize("timeout_ms", [-1, 0, 60, 2**31 - 1])
async def test_a_produce_request_is_answered_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """Or when its batch is stored, whichever comes first; once, however late the other comes."""
    world = World()
    serving = await Serving.open(world)
    try:
        await serving.topic()
        stored: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(serving.services.log, "place", lambda *_: stored)
        data = [
            {
                "name": "t",
                "partition_data": [{"index": 0, "records": make_batch([b"x"], timestamp_ms=world.clock.now_ms())}],
            }
        ]
        body = {"acks": -1, "timeout": timeout_ms, "topic_data": data}
        asked = asyncio.create_task(serving.ask(0, 12, body))
        if timeout_ms > 1_000:
            await asyncio.sleep(3 * STEP_S)
            assert not asked.done()
            stored.set_result(Appended(41, 42))
        async with asyncio.timeout(30):
            found = (await asked).responses[0].partition_responses[0]
        if timeout_ms > 1_000:
            assert (found.error_code, found.base_offset) == (0, 41)
        else:
            assert found.error_code == Code.REQUEST_TIMED_OUT
            assert "not stored within the request's time" in found.error_message
            stored.set_result(Appended(41, 42))  # nobody listens any longer
            await asyncio.sleep(0)
    finally:
        await serving.close()
        await world.close()
