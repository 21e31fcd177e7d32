"""Tests of requests whose clients have disconnected before they are served, and of requests that time out."""

import asyncio
import socket

import pytest
import uvloop
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.kafka.transaction_scenarios import END, ready
from tests.harness.log.brokers import World

from lakestream.data.wal.buffer import Appended
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.kafka.network.timer_wheel import STEP_S
from lakestream.protocol.kafka.wire import codec
from lakestream.testing.batches import make_batch


def test_end_txn_is_cancelled_when_its_client_has_disconnected() -> None:
    """A late EndTxn could end the next transaction: clients of the older protocol use the same epoch in both."""
    uvloop.run(_end_txn_after_disconnect())


async def _end_txn_after_disconnect() -> None:
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
        for connected in (False, True):
            with socket.create_connection(("127.0.0.1", port)) as client:
                await asyncio.sleep(0.05)
                # The broker shares this event loop, so it reads the request only after the close.
                client.sendall(codec.write_request(END, 3, 7, "tester", end))
                if not connected:
                    client.close()
                await asyncio.sleep(0.1)
                async with asyncio.timeout(10):
                    while await _is_open(serving) == connected:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
    finally:
        await server.stop()
        await serving.close()
        await world.close()


async def _is_open(serving: Serving) -> bool:
    record = await serving.services.transactions.describe("x")
    assert record is not None
    return record.is_open


@pytest.mark.parametrize("timeout_ms", [-1, 0, 60, 2**31 - 1])
async def test_produce_responds_at_its_timeout_or_when_the_batch_is_stored(
    monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    """Responds only once, also if the batch is stored after the timeout."""
    world = World()
    serving = await Serving.open(world)
    try:
        await serving.topic()
        stored: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(serving.services.log, "submit", lambda *_: stored)
        data = [
            {
                "name": "t",
                "partition_data": [{"index": 0, "records": make_batch([b"x"], timestamp_ms=world.clock.now_ms())}],
            }
        ]
        body = {"acks": -1, "timeout": timeout_ms, "topic_data": data}
        response = asyncio.create_task(serving.request(0, 12, body))
        if timeout_ms > 1_000:
            await asyncio.sleep(3 * STEP_S)
            assert not response.done()
            stored.set_result(Appended(41, 42))
        async with asyncio.timeout(30):
            partition = (await response).responses[0].partition_responses[0]
        if timeout_ms > 1_000:
            assert (partition.error_code, partition.base_offset) == (0, 41)
        else:
            assert partition.error_code == Code.REQUEST_TIMED_OUT
            assert "request timed out before the commit" in partition.error_message
            stored.set_result(Appended(41, 42))  # after the response
            await asyncio.sleep(0)
    finally:
        await serving.close()
        await world.close()
