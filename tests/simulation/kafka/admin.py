"""Admin clients, which delete records before an offset, and delete topics and create them again with the same name."""

import asyncio
from datetime import timedelta
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.link import LOST
from tests.simulation.kafka.response_checker import GONE, NONE, RETRIED, TOPIC_EXISTS, Topic

from lakestream.testing.fault_injection import log_uniform

TO_THE_END = -1


class Admin(Client):
    async def delete_records(self, name: str, partition_count: int) -> None:
        """Deletes records of random partitions several times. Retries each deletion until it gets a response."""
        world = self.world
        for _ in range(world.scenario.deletes):
            await asyncio.sleep(log_uniform(world.rng, 0.1, world.scenario.think_s_max * 4))
            if world.healed:
                break
            number = world.rng.randrange(partition_count)
            logs = self.checker.logs(Topic(name, None), number)
            end = world.oracle.log(logs[-1]).end if logs else 0
            await self._delete(name, number, world.rng.choice((TO_THE_END, world.rng.randint(0, end), end + 5)))
        self.disconnect()

    async def _delete(self, name: str, number: int, offset: int) -> None:
        for _ in range(5):
            link, began_s = self.link(), self.world.loop.now
            response = await self.request(
                frames.DELETE_RECORDS,
                {
                    "topics": [{"name": name, "partitions": [{"partition_index": number, "offset": offset}]}],
                    "timeout": timedelta(seconds=30),
                },
            )
            if response is not LOST:
                ((part,),) = [topic.partitions for topic in response.topics]
                self.checker.records_deleted(link.host, began_s, Topic(name, None), number, offset, part)
                return

    async def recreate(self, name: str, partition_count: int) -> None:
        """Deletes a topic and creates one of the same name. Another client's metadata request may create it first."""
        world = self.world
        for _ in range(world.rng.randint(1, 3)):
            await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.think_s_max * 8))
            if (old := world.oracle.topics.get(name)) is not None:
                await self._delete_topic(name, old.topic.topic_id)
            world.tally["topics deleted"] += 1
            await asyncio.sleep(log_uniform(world.rng, 0.001, 10.0))
            await self._create_topic(name, partition_count)
        self.disconnect()

    async def create(self, name: str) -> None:
        """Creates a new topic while the leader of the metadata store is deposed."""
        world = self.world
        await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.think_s_max * 4))
        if world.scenario.depositions and not world.healed:
            world.depose()
        await self._create_topic(name, 1)
        self.disconnect()

    async def read_metadata(self, name: str) -> None:
        """Requests the metadata of an existing topic from several brokers."""
        for _ in range(10):
            await self.find_topic(name)
            await self.think(2.0)
            self.disconnect()

    async def _delete_topic(self, name: str, topic_id: str) -> None:
        """Deletes the topic with this id; a client's metadata request may already have created another of the name."""
        while True:
            response = await self.request(
                frames.DELETE_TOPICS,
                {
                    "topics": [{"name": None, "topic_id": UUID(hex=topic_id)}],
                    "topic_names": [name],
                    "timeout": timedelta(seconds=30),
                },
            )
            if response is not LOST:
                (result,) = response.responses
                if result.error_code in (NONE, *GONE):
                    return
                self._check(result.error_code, "delete topics")
                await self.back_off()
            live = self.world.oracle.topics.get(name)
            if live is None or live.topic.topic_id != topic_id:
                return

    async def _create_topic(self, name: str, partition_count: int) -> None:
        while True:
            response = await self.request(
                frames.CREATE_TOPICS,
                {
                    "topics": [
                        {
                            "name": name,
                            "num_partitions": partition_count,
                            "replication_factor": 3,
                            "assignments": [],
                            "configs": [{"name": "retention.ms", "value": "-1"}],
                        }
                    ],
                    "timeout": timedelta(seconds=30),
                    "validate_only": False,
                },
            )
            if response is LOST:
                continue
            (result,) = response.topics
            if result.error_code in (NONE, TOPIC_EXISTS):
                return
            self._check(result.error_code, "create topics")
            await self.back_off()

    def _check(self, code: int, what: str) -> None:
        self.world.tally[f"kafka {what} error {int(code)}"] += 1
        if code not in RETRIED:
            self.world.oracle.report("clients can retry the error", f"{what} returned {code!r}")
