"""What every simulated client does: find a broker, ask for metadata, try again, change the broker."""

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.simulation.kafka import frames
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.judge import Judge
from tests.simulation.kafka.link import LOST, Link
from tests.simulation.world import World

from lakestream.testing.faults import spread


class Client:
    def __init__(self, world: World, judge: Judge, name: str) -> None:
        self.world = world
        self.judge = judge
        self.name = name
        self._link: Link | None = None
        self._fails = 0
        zone = world.luck.choice(("", ",zone_id=a", ",zone_id=c"))
        self._client_id = f"{name}{zone}"

    def link(self) -> Link:
        """To the broker that it is with, or to any."""
        if self._link is None or not self._link.open:
            host = self.world.luck.choice(self.world.brokers)
            assert isinstance(host, KafkaHost)
            self._link = Link(host, self._client_id)
        return self._link

    def leave(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    async def back_off(self) -> None:
        """Longer after each failure, up to a few seconds; now and then another broker."""
        self._fails += 1
        await asyncio.sleep(spread(self.world.luck, 0.02, min(0.2 * 2 ** min(self._fails, 6), 8.0)))
        if self.world.luck.random() < 0.5:
            self.leave()

    def works(self) -> None:
        self._fails = 0

    async def ask(self, key: int, values: Mapping[str, Any]) -> Any:
        """One try at whatever broker: its answer, or LOST."""
        answer = await self.link().ask(key, values)
        if answer is LOST:
            await self.back_off()
        return answer

    async def look(self, name: str) -> str | None:
        """The id of a topic. None: there is none now, or the broker cannot tell."""
        link, began_s = self.link(), self.world.loop.now
        answer = await self.ask(
            frames.METADATA,
            {
                "topics": [{"name": name, "topic_id": None}],
                "allow_auto_topic_creation": self.world.luck.random() < 0.5,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        if answer is LOST:
            return None
        return self.judge.metadata(name, answer, began_s, link.host)

    async def think(self, seconds_max: float) -> None:
        await asyncio.sleep(spread(self.world.luck, 0.002, seconds_max))
