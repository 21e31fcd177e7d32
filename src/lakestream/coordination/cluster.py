"""Topics and brokers as this broker knows them: in memory for every request, kept fresh by the change feed.

A cached answer may be late, never invented: what is not known here is asked of the store before it is denied.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata import keys
from lakestream.metadata.brokers import Broker, Brokers
from lakestream.metadata.claims import Claims
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

FEED_RETRY_MS: Final = 200
GONE_IDS_MAX: Final = 10_000


class ClusterView:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._topics = Topics(store)
        self._brokers = Brokers(store)
        self._claims = Claims(store)
        self._by_name: dict[str, Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._gone_ids: dict[str, None] = {}  # asked for, and nobody's; the oldest first
        self.brokers: list[Broker] = []
        self.derived: dict[object, bytes] = {}
        """What was built from the topics and brokers of now; a change of either takes it away."""
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.look_at_topics()
        await self.look_at_brokers()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(keys.TOPICS.path, self.look_at_topics), name="cluster.topics"),
            loop.create_task(self._follow(keys.BROKERS.path, self.look_at_brokers), name="cluster.brokers"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def known(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    @property
    def topics(self) -> dict[str, Topic]:
        return self._by_name

    def name_of(self, topic_id: str) -> str | None:
        return self._names.get(topic_id)

    async def topic(self, name: str) -> Topic:
        """From memory, else from the store. Missing: there is none, for certain."""
        known = self._by_name.get(name)
        if known is None:
            known = await self._topics.get(name)
            self.learn(name, known)
        return known

    async def partition(self, name: str, number: int) -> PartitionId:
        """Missing: there is no such topic, or it has no such partition, for certain."""
        topic = await self.topic(name)
        if number >= topic.partition_count and (now := await self._topics.get(name)) != topic:  # it has grown
            self.learn(name, topic := now)
        if not 0 <= number < topic.partition_count:
            raise Missing(f"topic {name} has no partition {number}, only 0 to {topic.partition_count - 1}")
        return PartitionId(topic.topic_id, number)

    async def name_of_id(self, topic_id: str) -> str:
        """Missing: no topic has that id (any more), for certain."""
        name = self._names.get(topic_id)
        if name is None and await self._may_exist(topic_id):
            self._put(await self._topics.all(confirmed=True))
            name = self._names.get(topic_id)
        if name is None:
            raise Missing(f"no topic has the id {topic_id}")
        return name

    async def _may_exist(self, topic_id: str) -> bool:
        """A topic has logs before it has its name: one small read, where a look at all topics may be a large one.

        Ids are never used again, so one that nobody has is remembered: clients with an old one ask again and again.
        """
        if not topic_id or topic_id in self._gone_ids:
            return False
        if await self._claims.floor(PartitionId(topic_id, 0)) is not None:
            return True
        self._gone_ids[topic_id] = None
        if len(self._gone_ids) > GONE_IDS_MAX:
            del self._gone_ids[next(iter(self._gone_ids))]
        return False

    def learn(self, name: str, topic: Topic) -> None:
        self._put({**self._by_name, name: topic})

    def forget_log(self, partition: PartitionId) -> None:
        """It is gone, so its topic is another one by now, or none: the next who asks looks at the store."""
        name = self._names.get(partition.topic_id)
        if name is not None:
            self.forget(name)

    def forget(self, name: str) -> None:
        self._put({known: topic for known, topic in self._by_name.items() if known != name})

    async def look_at_topics(self) -> None:
        # Confirmed: nobody looks again before something changes, so an old leader's word would be believed for ever,
        # and groups be given partitions of a topic that was deleted instead of those of its successor.
        self._put(await self._topics.all(confirmed=True))

    async def look_at_brokers(self) -> None:
        brokers = await self._brokers.all()
        if brokers != self.brokers:
            self.brokers = brokers
            self.derived = {}

    def _put(self, topics: dict[str, Topic]) -> None:
        self._by_name = topics
        self._names = {topic.topic_id: name for name, topic in topics.items()}
        self.derived = {}

    async def _follow(self, prefix: str, look: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                async for _ in self._store.watch(prefix):
                    await look()
            except LakestreamError as error:
                log.warning("cluster.feed_broken prefix=%s error=%s", prefix, error)
            except Exception:
                log.exception("cluster.feed_broken prefix=%s", prefix)  # a bug must not end all news
            await asyncio.sleep(FEED_RETRY_MS / 1000)
