"""Consumers: they follow the log from broker to broker, wait at its end, look for offsets, and start again where they
must. Everything that they are told is held against the truth."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.judge import (
    GONE,
    NONE,
    OUT_OF_RANGE,
    SESSION_NOT_FOUND,
    Fetched,
    Judge,
    Topic,
    Wanted,
    batches_of,
)
from tests.simulation.kafka.link import LOST, REQUEST_S, Link
from tests.simulation.kafka.producers import FIRST_MS
from tests.simulation.world import World

LATEST, EARLIEST = -1, -2
LIMITS = (1, 200, 1_000, 100_000)
WAITS_S = (0.0, 0.5, 5.0, 20.0)
A_SESSION = 12345


class Consumer(Client):
    def __init__(self, world: World, judge: Judge, name: str, topic_name: str, partition_count: int) -> None:
        super().__init__(world, judge, name)
        self.topic_name = topic_name
        self.topic_id: str | None = None
        self.positions = dict.fromkeys(range(partition_count), 0)

    async def run(self) -> None:
        world = self.world
        while not world.healed:
            if self.topic_id is None:
                self.topic_id = await self.look(self.topic_name)
                if self.topic_id is None:
                    await self.back_off()
                continue
            what = world.luck.choice((self.fetch, self.fetch, self.fetch, self.fetch_anywhere, self.list_offsets))
            await what()
            if world.luck.random() < 0.1:
                self.leave()
            await self.think(world.mood.think_s_max)
        self.leave()

    def _topic(self, by_id: bool) -> Topic:
        return Topic(self.topic_name, self.topic_id if by_id else None)

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(self) -> None:
        """Go on where it is, with all partitions or some."""
        luck = self.world.luck
        numbers = luck.sample(sorted(self.positions), luck.randint(1, len(self.positions)))
        await self._fetch({number: self.positions[number] for number in numbers}, moves=True)

    async def fetch_anywhere(self) -> None:
        number = self.world.luck.choice(sorted(self.positions))
        logs = self.judge.logs(self._topic(True), number)
        end = self.world.witness.log(logs[-1]).end if logs else 0
        await self._fetch({number: self.world.luck.randint(0, end + 1)}, moves=False)

    async def _fetch(self, offsets: dict[int, int], *, moves: bool) -> None:
        luck, link = self.world.luck, self.link()
        topic = self._topic(by_id=link.versions[frames.FETCH] >= frames.FETCH_BY_ID_FROM)
        wanted = [Wanted(topic, number, offset, luck.choice(LIMITS)) for number, offset in offsets.items()]
        asked = Fetched(
            link.host,
            self.world.loop.now,
            luck.choice(WAITS_S),
            luck.choice((0, 1, 1, 1, 500)),
            luck.choice(LIMITS),
            wanted,
            rack=luck.choice(("", "", "a", "b")),
        )
        parts = await fetched(self, link, asked)
        for one, part in zip(wanted, parts, strict=False):
            if part.error_code in GONE:
                self._forget()
            elif part.error_code == OUT_OF_RANGE and moves:
                await self._reset(one.number)
            elif part.error_code == NONE and moves and (batches := batches_of(part.records)):
                self.positions[one.number] = batches[-1].offset_next

    def _forget(self) -> None:
        """The topic is gone, or another one: from its beginning, once it is known."""
        self.topic_id = None
        self.positions = dict.fromkeys(self.positions, 0)

    async def _reset(self, number: int) -> None:
        offset = await listed(self, self.link(), self._topic(by_id=False), number, EARLIEST)
        if offset is not None:
            self.positions[number] = offset

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_offsets(self) -> None:
        luck = self.world.luck
        moment_ms = FIRST_MS + luck.randint(-1_000, int(self.world.loop.now * 1000) + 1_000)
        timestamp = luck.choice((LATEST, EARLIEST, moment_ms))
        await listed(self, self.link(), self._topic(by_id=False), luck.choice(sorted(self.positions)), timestamp)


async def fetched(client: Client, link: Link, asked: Fetched) -> list[Any]:
    """One fetch, checked; the answer's partitions in the order asked for, or nothing if there is no answer."""
    world, judge = client.world, client.judge
    topic = asked.wanted[0].topic
    in_session = link.versions[frames.FETCH] >= 7 and world.luck.random() < 0.03
    answer = await link.ask(
        frames.FETCH,
        {
            "replica_id": -1,
            "max_wait": timedelta(seconds=asked.wait_s),
            "min_bytes": asked.min_bytes,
            "max_bytes": asked.max_bytes,
            "session_id": A_SESSION if in_session else 0,
            "session_epoch": 7 if in_session else 0,
            "forgotten_topics_data": [],
            "rack_id": asked.rack,
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": None if topic.topic_id is None else UUID(hex=topic.topic_id),
                    "partitions": [
                        {"partition": one.number, "fetch_offset": one.offset, "partition_max_bytes": one.bytes_max}
                        for one in asked.wanted
                    ],
                }
            ],
        },
        patience_s=REQUEST_S + asked.wait_s,
    )
    if answer is LOST:
        await client.back_off()
        return []
    client.works()
    if in_session:
        if answer.error_code != SESSION_NOT_FOUND:
            world.witness.accuse("no session is kept", f"{link.host.name} answered {answer.error_code!r}")
        return []
    if getattr(answer, "session_id", 0) != 0:
        world.witness.accuse("no session is kept", f"{link.host.name} gave session {answer.session_id}")
    (one,) = answer.responses
    by_number = {part.partition_index: part for part in one.partitions}
    parts = [by_number[wanted.number] for wanted in asked.wanted]
    judge.fetched(asked, parts)
    return parts


async def listed(client: Client, link: Link, topic: Topic, number: int, timestamp: int) -> int | None:
    """An offset by time, or of an end; checked. None: no answer."""
    began_s = client.world.loop.now
    answer = await link.ask(
        frames.LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": number, "current_leader_epoch": -1, "timestamp": timestamp}],
                }
            ],
            "timeout": timedelta(seconds=30),
        },
    )
    if answer is LOST:
        await client.back_off()
        return None
    ((part,),) = [one.partitions for one in answer.topics]
    client.judge.listed(link.host, began_s, topic, number, timestamp, part)
    return part.offset if part.error_code == NONE else None
