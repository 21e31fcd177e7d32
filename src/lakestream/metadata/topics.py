"""Topics by name, with their id, number of partitions and settings.

Order of steps: a topic's logs are created before its name, and its name is deleted after its logs, so that the next
attempt can finish after a crash.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from lakestream.errors import Conflict, LakestreamError, Missing, Rejected
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one, update
from lakestream.model import PartitionId


class Topic(msgspec.Struct, frozen=True):
    topic_id: str
    partition_count: int
    settings: dict[str, str] = {}

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(self.topic_id, number) for number in range(self.partition_count)]


class NamedTopic(NamedTuple):
    name: str
    topic: Topic


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Topic).decode


class Topics:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._claims = Claims(store)

    async def create(self, name: str, topic: Topic) -> Topic:
        """Creates a topic, whose id must be new. Raises Conflict if the name exists."""
        exists = Conflict(f"Topic '{name}' already exists.")
        if await self._exists(name):
            raise exists  # before thousands of logs are created and deleted in vain
        await self._create_logs(topic)
        try:
            await put_one(self._store, keys.topic_key(name), _encode(topic), ABSENT)
        except Conflict:
            await self._claims.delete_logs(topic.partitions())
            raise exists from None
        return topic

    async def _create_logs(self, topic: Topic) -> None:
        """Creates all logs or, also if the client's request is cancelled, none: they would belong to no topic."""
        try:
            await self._claims.create_logs(topic.partitions())
        except BaseException:
            with contextlib.suppress(LakestreamError):
                await self._claims.delete_logs(topic.partitions())
            raise

    async def _exists(self, name: str) -> bool:
        """Returns whether the topic exists. True is confirmed by the leader; False may be stale."""
        key = keys.topic_key(name)
        return await self._store.get(key) is not None and await self._store.get(key, confirmed=True) is not None

    async def get(self, name: str, *, confirmed: bool = False) -> Topic:
        """Returns the topic. Raises Missing if a confirmed read does not find it."""
        record = await self._store.get(keys.topic_key(name), confirmed=confirmed)
        return _topic(await self._record(name) if record is None else record)

    async def all(self, *, confirmed: bool = False) -> dict[str, Topic]:
        scanned = await self._store.scan(keys.TOPICS, confirmed=confirmed)
        return {record.name: _topic(record) for record in scanned.records}

    async def find_id(self, topic_id: str) -> NamedTopic | None:
        """Returns the topic with the id, or None. Reads all topics, so it is only for rare calls."""
        topics = (await self.all(confirmed=True)).items()
        return next((NamedTopic(name, topic) for name, topic in topics if topic.topic_id == topic_id), None)

    async def is_deleted(self, topic_id: str) -> bool:
        """Returns whether the topic is deleted or being deleted: its logs are deleted first."""
        return await self._claims.floor(PartitionId(topic_id, 0)) is None

    async def set(self, name: str, settings: dict[str, str]) -> Topic:
        """Replaces a topic's settings. Raises Conflict if the topic was changed concurrently."""
        record = await self._record(name)
        topic = msgspec.structs.replace(_topic(record), settings=settings)
        await put_one(self._store, keys.topic_key(name), _encode(topic), record.version)
        return topic

    async def alter(self, name: str, settings_of: Callable[[Topic], dict[str, str]]) -> Topic:
        """Changes a topic's settings. Retries if the topic is changed concurrently."""

        def altered(record: Record | None) -> bytes:
            topic = _topic(_existing(name, record))
            return _encode(msgspec.structs.replace(topic, settings=settings_of(topic)))

        return _decode(await update(self._store, keys.topic_key(name), altered, confirmed=True))

    async def grow(self, name: str, partition_count: int) -> Topic:
        """Adds partitions to a topic. Raises Rejected if it has as many already."""
        added: list[PartitionId] = []
        while True:
            record = await self._store.get(keys.topic_key(name), confirmed=True)
            if added and (record is None or _topic(record).topic_id != added[0].topic_id):
                await self._claims.delete_logs(added)  # the topic was deleted concurrently, without these logs
            topic = _topic(record := _existing(name, record))
            if topic.partition_count >= partition_count:
                raise Rejected(f"topic {name} already has {topic.partition_count} partitions")
            grown = msgspec.structs.replace(topic, partition_count=partition_count)
            added = grown.partitions()[topic.partition_count :]
            await self._claims.create_logs(added)
            try:
                await put_one(self._store, keys.topic_key(name), _encode(grown), record.version)
            except Conflict:
                continue
            return grown

    async def delete(
        self, name: str, topic_id: str | None = None, before_name: Callable[[Topic], Awaitable[None]] | None = None
    ) -> Topic:
        """Deletes a topic. Its records become unavailable immediately; the garbage collector deletes the bytes.

        `topic_id`: deletes only the topic with this id, not a new topic of the same name. `before_name` is called after
        the logs and before the name are deleted: if it fails, the topic still exists and can be deleted again.
        """
        while True:
            topic = _topic(record := await self._record(name))
            if topic_id not in (None, topic.topic_id):
                raise Missing(f"no topic has the id {topic_id}")
            await self._claims.delete_logs(topic.partitions())
            if before_name is not None:
                await before_name(topic)
            try:
                await self._store.delete(keys.topic_key(name), record.version)
            except Conflict:
                continue  # its settings or its number of partitions were changed
            return topic

    async def _record(self, name: str) -> Record:
        return _existing(name, await self._store.get(keys.topic_key(name), confirmed=True))


def _existing(name: str, record: Record | None) -> Record:
    if record is None:
        raise Missing(f"topic {name} does not exist")
    return record


def _topic(record: Record) -> Topic:
    return decode_record(record, _decode, "a topic")
