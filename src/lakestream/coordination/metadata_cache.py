"""Cache of topics, brokers and configs, used by every request and refreshed when the store's watch reports a change.

A cached entry may be stale. A topic that is not cached is read from the store before it is reported as missing.
"""

from functools import partial
from typing import Final

from lakestream.aio.background import BackgroundTasks, follow
from lakestream.errors import Missing
from lakestream.metadata import keys
from lakestream.metadata.brokers import Broker, Brokers
from lakestream.metadata.claims import Claims
from lakestream.metadata.cluster import ConfigResource, ConfigStore
from lakestream.metadata.store import Changes, MetadataStore
from lakestream.metadata.topics import Topic, Topics
from lakestream.model import PartitionId

MISSING_IDS_MAX: Final = 10_000


class MetadataCache:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._topics = Topics(store)
        self._brokers = Brokers(store)
        self._claims = Claims(store)
        self._configs = ConfigStore(store)
        self._by_name: dict[str, Topic] = {}
        self._names: dict[str, str] = {}  # by topic id
        self._missing_ids: dict[str, None] = {}  # ids of no topic; oldest first
        self.brokers: list[Broker] = []
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        """Configs of groups and brokers. Another object after every change."""
        self.derived: dict[object, bytes] = {}
        """Encoded responses built from the current topics and brokers. Cleared when either changes."""
        self._tasks = BackgroundTasks()

    async def start(self) -> None:
        await self.refresh_topics()
        await self.refresh_brokers()
        await self.refresh_configs()
        for path, on_change in (
            (keys.TOPICS.path, self._on_topics_changed),
            (keys.BROKERS.path, self._on_brokers_changed),
            (keys.CONFIGS.path, self._on_configs_changed),
        ):
            watch = partial(self._store.watch, path)
            self._tasks.start(follow(watch, on_change, f"cluster.watch_failed prefix={path}"), f"cluster.{path}")

    async def close(self) -> None:
        await self._tasks.close()

    def cached_topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    @property
    def topics(self) -> dict[str, Topic]:
        return self._by_name

    def cached_name(self, topic_id: str) -> str | None:
        return self._names.get(topic_id)

    async def topic(self, name: str) -> Topic:
        """Returns the topic from the cache, else from the store. Raises Missing if it certainly does not exist."""
        topic = self._by_name.get(name)
        if topic is None:
            topic = await self._topics.get(name)
            self.remember_topic(name, topic)
        return topic

    async def partition(self, name: str, number: int) -> PartitionId:
        """Raises Missing if the topic or the partition certainly does not exist."""
        topic = await self.topic(name)
        if number >= topic.partition_count and (stored := await self._topics.get(name)) != topic:
            self.remember_topic(name, topic := stored)  # it has more partitions now
        if not 0 <= number < topic.partition_count:
            raise Missing(f"topic {name} has no partition {number}, only 0 to {topic.partition_count - 1}")
        return PartitionId(topic.topic_id, number)

    async def name_of_id(self, topic_id: str) -> str:
        """Returns the topic's name from the cache, else from the store. Raises Missing if no topic has this id."""
        name = self._names.get(topic_id)
        if name is None and await self._may_exist(topic_id):
            self._put(await self._topics.all(confirmed=True))
            name = self._names.get(topic_id)
        if name is None:
            raise Missing(f"no topic has the id {topic_id}")
        return name

    async def _may_exist(self, topic_id: str) -> bool:
        """Returns whether the id has a partition, which every topic has before its name is stored.

        This is one small read, where a scan of all topics may be large. Ids are never reused, so a missing one is
        cached: clients with an old id retry again and again.
        """
        if not topic_id or topic_id in self._missing_ids:
            return False
        if await self._claims.floor(PartitionId(topic_id, 0)) is not None:
            return True
        self._missing_ids[topic_id] = None
        if len(self._missing_ids) > MISSING_IDS_MAX:
            del self._missing_ids[next(iter(self._missing_ids))]
        return False

    def remember_topic(self, name: str, topic: Topic) -> None:
        self._put({**self._by_name, name: topic})

    def evict_topic_of(self, partition: PartitionId) -> None:
        """Evicts the topic of a deleted partition: it was deleted, or recreated with another id."""
        name = self._names.get(partition.topic_id)
        if name is not None:
            self.evict(name)

    def evict(self, name: str) -> None:
        self._put({other: topic for other, topic in self._by_name.items() if other != name})

    async def refresh_topics(self) -> None:
        # Confirmed: there is no further refresh until the next change. A stale read from a deposed leader would be kept
        # all that time, and groups would get partitions of a deleted topic instead of those of its successor.
        self._put(await self._topics.all(confirmed=True))

    async def refresh_brokers(self) -> None:
        brokers = await self._brokers.all()
        if brokers != self.brokers:
            self.brokers = brokers
            self.derived = {}

    def remember_configs(self, resource: ConfigResource, texts: dict[str, str]) -> None:
        others = {other: configs for other, configs in self.configs.items() if other != resource}
        self.configs = others | ({resource: texts} if texts else {})

    async def refresh_configs(self) -> None:
        self.configs = await self._configs.all(confirmed=True)  # see refresh_topics

    def _put(self, topics: dict[str, Topic]) -> None:
        self._by_name = topics
        self._names = {topic.topic_id: name for name, topic in topics.items()}
        self.derived = {}

    async def _on_topics_changed(self, _: Changes) -> None:
        await self.refresh_topics()

    async def _on_brokers_changed(self, _: Changes) -> None:
        await self.refresh_brokers()

    async def _on_configs_changed(self, _: Changes) -> None:
        await self.refresh_configs()
