"""A broker that was away, stopped or starved, finds requests of clients that have long gone elsewhere."""

import asyncio
import socket

import uvloop
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving
from tests.unit.protocol.kafka.transaction_scenarios import END, ready

from lakestream.protocol.kafka import codec
from lakestream.protocol.kafka.server import KafkaServer, ServerSettings


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
