"""Consumers, which read from changing brokers, wait at the end of the log, list offsets, and reset their position after
an error. Every response is checked."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.simulation.kafka import frames
from tests.simulation.kafka.client import Client
from tests.simulation.kafka.link import LOST, REQUEST_S, Link
from tests.simulation.kafka.producers import FIRST_MS
from tests.simulation.kafka.response_checker import (
    GONE,
    NONE,
    OUT_OF_RANGE,
    SESSION_NOT_FOUND,
    FetchRequest,
    PartitionFetch,
    ResponseChecker,
    Topic,
    batches_of,
)
from tests.simulation.world import World

LATEST, EARLIEST = -1, -2
LIMITS = (1, 200, 1_000, 100_000)
WAITS_S = (0.0, 0.5, 5.0, 20.0)
UNKNOWN_SESSION = 12345


class Consumer(Client):
    def __init__(
        self, world: World, checker: ResponseChecker, name: str, topic_name: str, partition_count: int
    ) -> None:
        super().__init__(world, checker, name)
        self.topic_name = topic_name
        self.topic_id: str | None = None
        self.positions = dict.fromkeys(range(partition_count), 0)

    async def run(self) -> None:
        world = self.world
        while not world.healed:
            if self.topic_id is None:
                self.topic_id = await self.find_topic(self.topic_name)
                if self.topic_id is None:
                    await self.back_off()
                continue
            action = world.rng.choice((self.fetch, self.fetch, self.fetch, self.fetch_anywhere, self.list_offsets))
            await action()
            if world.rng.random() < 0.1:
                self.disconnect()
            await self.think(world.scenario.think_s_max)
        self.disconnect()

    def _topic(self, by_id: bool) -> Topic:
        return Topic(self.topic_name, self.topic_id if by_id else None)

    # ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def fetch(self) -> None:
        """Fetches all or some partitions from their positions."""
        rng = self.world.rng
        numbers = rng.sample(sorted(self.positions), rng.randint(1, len(self.positions)))
        await self._fetch({number: self.positions[number] for number in numbers}, moves=True)

    async def fetch_anywhere(self) -> None:
        number = self.world.rng.choice(sorted(self.positions))
        logs = self.checker.logs(self._topic(True), number)
        end = self.world.oracle.log(logs[-1]).end if logs else 0
        await self._fetch({number: self.world.rng.randint(0, end + 1)}, moves=False)

    async def _fetch(self, offsets: dict[int, int], *, moves: bool) -> None:
        rng, link = self.world.rng, self.link()
        topic = self._topic(by_id=link.versions[frames.FETCH] >= frames.FETCH_BY_ID_FROM)
        partitions = [PartitionFetch(topic, number, offset, rng.choice(LIMITS)) for number, offset in offsets.items()]
        request = FetchRequest(
            link.host,
            self.world.loop.now,
            rng.choice(WAITS_S),
            rng.choice((0, 1, 1, 1, 500)),
            rng.choice(LIMITS),
            partitions,
            rack=rng.choice(("", "", "a", "b")),
        )
        parts = await fetch(self, link, request)
        for requested, part in zip(partitions, parts, strict=False):
            if part.error_code in GONE:
                self._forget()
            elif part.error_code == OUT_OF_RANGE and moves:
                await self._reset(requested.number)
            elif part.error_code == NONE and moves and (batches := batches_of(part.records)):
                self.positions[requested.number] = batches[-1].offset_next

    def _forget(self) -> None:
        """Drops topic id and positions, because the topic was deleted or recreated."""
        self.topic_id = None
        self.positions = dict.fromkeys(self.positions, 0)

    async def _reset(self, number: int) -> None:
        offset = await list_offset(self, self.link(), self._topic(by_id=False), number, EARLIEST)
        if offset is not None:
            self.positions[number] = offset

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def list_offsets(self) -> None:
        rng = self.world.rng
        moment_ms = FIRST_MS + rng.randint(-1_000, int(self.world.loop.now * 1000) + 1_000)
        timestamp = rng.choice((LATEST, EARLIEST, moment_ms))
        await list_offset(self, self.link(), self._topic(by_id=False), rng.choice(sorted(self.positions)), timestamp)


async def fetch(client: Client, link: Link, request: FetchRequest) -> list[Any]:
    """Sends a fetch and checks the response. Returns its partitions in request order, empty without a response."""
    world, checker = client.world, client.checker
    topic = request.partitions[0].topic
    in_session = link.versions[frames.FETCH] >= 7 and world.rng.random() < 0.03
    response = await link.request(
        frames.FETCH,
        {
            "replica_id": -1,
            "max_wait": timedelta(seconds=request.wait_s),
            "min_bytes": request.min_bytes,
            "max_bytes": request.max_bytes,
            "session_id": UNKNOWN_SESSION if in_session else 0,
            "session_epoch": 7 if in_session else 0,
            "forgotten_topics_data": [],
            "rack_id": request.rack,
            "topics": [
                {
                    "topic": topic.name,
                    "topic_id": None if topic.topic_id is None else UUID(hex=topic.topic_id),
                    "partitions": [
                        {"partition": one.number, "fetch_offset": one.offset, "partition_max_bytes": one.bytes_max}
                        for one in request.partitions
                    ],
                }
            ],
        },
        timeout_s=REQUEST_S + request.wait_s,
    )
    if response is LOST:
        await client.back_off()
        return []
    client.succeeded()
    if in_session:
        if response.error_code != SESSION_NOT_FOUND:
            world.oracle.report("no fetch session is created", f"{link.host.name} returned {response.error_code!r}")
        return []
    if getattr(response, "session_id", 0) != 0:
        world.oracle.report("no fetch session is created", f"{link.host.name} created {response.session_id}")
    (topic_response,) = response.responses
    by_number = {part.partition_index: part for part in topic_response.partitions}
    parts = [by_number[partition.number] for partition in request.partitions]
    checker.fetched(request, parts)
    return parts


async def list_offset(client: Client, link: Link, topic: Topic, number: int, timestamp: int) -> int | None:
    """Lists an offset by timestamp or of an end, and checks it. Returns None without a response or after an error."""
    began_s = client.world.loop.now
    response = await link.request(
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
    if response is LOST:
        await client.back_off()
        return None
    ((part,),) = [listed.partitions for listed in response.topics]
    client.checker.offset_listed(link.host, began_s, topic, number, timestamp, part)
    return part.offset if part.error_code == NONE else None
