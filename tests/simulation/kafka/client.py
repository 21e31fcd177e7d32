"""Base class of simulated Kafka clients: connects to brokers, reads metadata, backs off and changes brokers."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.simulation.kafka import frames
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.kafka.response_checker import ResponseChecker
from tests.simulation.world import World

from lakestream.testing.fault_injection import log_uniform


class Client:
    def __init__(self, world: World, checker: ResponseChecker, name: str) -> None:
        self.world = world
        self.checker = checker
        self.name = name
        self._link: Link | None = None
        self._failures = 0
        zone = world.rng.choice(("", ",zone_id=a", ",zone_id=c"))
        self._client_id = f"{name}{zone}"

    def link(self) -> Link:
        """Returns the open connection, or a new one to any broker."""
        if self._link is None or not self._link.open:
            host = self.world.rng.choice(self.world.brokers)
            assert isinstance(host, KafkaHost)
            self._link = Link(host, self._client_id)
        return self._link

    def disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def back_off(self) -> None:
        """Waits longer after each failure, up to a few seconds. Sometimes changes the broker."""
        self._failures += 1
        await asyncio.sleep(log_uniform(self.world.rng, 0.02, min(0.2 * 2 ** min(self._failures, 6), 8.0)))
        if self.world.rng.random() < 0.5:
            self.disconnect()

    def succeeded(self) -> None:
        self._failures = 0

    async def request(self, key: int, values: Mapping[str, Any]) -> Any:
        """Sends one request to any broker. Returns its response or LOST."""
        response = await self.link().request(key, values)
        if response is LOST:
            await self.back_off()
        return response

    async def find_topic(self, name: str) -> str | None:
        """Returns the id of a topic, or None if it does not exist or the request failed."""
        link, began_s = self.link(), self.world.loop.now
        response = await self.request(
            frames.METADATA,
            {
                "topics": [{"name": name, "topic_id": None}],
                "allow_auto_topic_creation": self.world.rng.random() < 0.5,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        if response is LOST:
            return None
        return self.checker.metadata(name, response, began_s, link.host)

    async def think(self, seconds_max: float) -> None:
        await asyncio.sleep(log_uniform(self.world.rng, 0.002, seconds_max))
