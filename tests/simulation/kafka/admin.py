"""Those who delete: records before an offset, and whole topics, which are then made again under the same name."""

import asyncio
from datetime import timedelta
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.judge import GONE, NONE, RETRIED, TOPIC_EXISTS, Topic
from tests.simulation.kafka.link import LOST

from lakestream.testing.faults import spread

TO_THE_END = -1


class Admin(Client):
    async def delete_records(self, name: str, partition_count: int) -> None:
        """So often, somewhere; each until there is an answer."""
        world = self.world
        for _ in range(world.mood.deletes):
            await asyncio.sleep(spread(world.luck, 0.1, world.mood.think_s_max * 4))
            if world.healed:
                break
            number = world.luck.randrange(partition_count)
            logs = self.judge.logs(Topic(name, None), number)
            end = world.witness.log(logs[-1]).end if logs else 0
            await self._delete(name, number, world.luck.choice((TO_THE_END, world.luck.randint(0, end), end + 5)))
        self.leave()

    async def _delete(self, name: str, number: int, offset: int) -> None:
        for _ in range(5):
            link, began_s = self.link(), self.world.loop.now
            answer = await self.ask(
                frames.DELETE_RECORDS,
                {
                    "topics": [{"name": name, "partitions": [{"partition_index": number, "offset": offset}]}],
                    "timeout": timedelta(seconds=30),
                },
            )
            if answer is not LOST:
                ((part,),) = [topic.partitions for topic in answer.topics]
                self.judge.deleted(link.host, began_s, Topic(name, None), number, offset, part)
                return

    async def recreate(self, name: str, partition_count: int) -> None:
        """Delete a topic, and make one of the same name. Who asks for it in between may make it too."""
        world = self.world
        for _ in range(world.luck.randint(1, 3)):
            await asyncio.sleep(spread(world.luck, 0.5, world.mood.think_s_max * 8))
            if (old := world.witness.topics.get(name)) is not None:
                await self._delete_topic(name, old.topic.topic_id)
            world.tally["topics deleted"] += 1
            await asyncio.sleep(spread(world.luck, 0.001, 10.0))
            await self._create_topic(name, partition_count)
        self.leave()

    async def create(self, name: str) -> None:
        """A topic that never was before, as the store's leader is deposed."""
        world = self.world
        await asyncio.sleep(spread(world.luck, 0.5, world.mood.think_s_max * 4))
        if world.mood.depositions and not world.healed:
            world.depose()
        await self._create_topic(name, 1)
        self.leave()

    async def look_around(self, name: str) -> None:
        """Ask brokers for a topic that is there."""
        for _ in range(10):
            await self.look(name)
            await self.think(2.0)
            self.leave()

    async def _delete_topic(self, name: str, topic_id: str) -> None:
        """Only this one: another of the name may be there already, made by a client that asked for it."""
        while True:
            answer = await self.ask(
                frames.DELETE_TOPICS,
                {
                    "topics": [{"name": None, "topic_id": UUID(hex=topic_id)}],
                    "topic_names": [name],
                    "timeout": timedelta(seconds=30),
                },
            )
            if answer is not LOST:
                (said,) = answer.responses
                if said.error_code in (NONE, *GONE):
                    return
                self._check(said.error_code, "delete topics")
                await self.back_off()
            named = self.world.witness.topics.get(name)
            if named is None or named.topic.topic_id != topic_id:
                return

    async def _create_topic(self, name: str, partition_count: int) -> None:
        while True:
            answer = await self.ask(
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
            if answer is LOST:
                continue
            (said,) = answer.topics
            if said.error_code in (NONE, TOPIC_EXISTS):
                return
            self._check(said.error_code, "create topics")
            await self.back_off()

    def _check(self, code: int, what: str) -> None:
        self.world.tally[f"kafka {what} error {int(code)}"] += 1
        if code not in RETRIED:
            self.world.witness.accuse("errors that clients retry", f"{what} was answered with {code!r}")
