"""Topics by name: which id a name stands for, how many logs it has, and its settings.

Order of steps: a topic's logs exist before its name does, and its name goes after its logs, so that a crash in between
leaves something that the next try finishes.
"""

import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from lakestream.errors import Conflict, Corrupt, LakestreamError, Missing, Rejected
from lakestream.metadata import keys
from lakestream.metadata.claims import Claims
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one
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
        """Conflict if the name is taken. The topic's id must be new."""
        taken = Conflict(f"topic {name} exists already")
        if await self._exists(name):
            raise taken  # before thousands of logs are made and buried in vain
        await self._make_logs(topic)
        try:
            await put_one(self._store, keys.topic_key(name), _encode(topic), ABSENT)
        except Conflict:
            await self._claims.bury_logs(topic.partitions())
            raise taken from None
        return topic

    async def _make_logs(self, topic: Topic) -> None:
        """All of them, or none: no name would ever lead to the others. A client that leaves ends this in the middle."""
        try:
            await self._claims.make_logs(topic.partitions())
        except BaseException:
            with contextlib.suppress(LakestreamError):
                await self._claims.bury_logs(topic.partitions())
            raise

    async def _exists(self, name: str) -> bool:
        """False may be late; True is asked of a node that leads for certain."""
        key = keys.topic_key(name)
        return await self._store.get(key) is not None and await self._store.get(key, confirmed=True) is not None

    async def get(self, name: str, *, confirmed: bool = False) -> Topic:
        record = await self._store.get(keys.topic_key(name), confirmed=confirmed)
        if record is None:  # a refusal: ask a node that leads for certain
            record = await self._store.get(keys.topic_key(name), confirmed=True)
        if record is None:
            raise Missing(f"there is no topic {name}")
        return _topic(record)

    async def all(self, *, confirmed: bool = False) -> dict[str, Topic]:
        scanned = await self._store.scan(keys.TOPICS, confirmed=confirmed)
        return {record.name: _topic(record) for record in scanned.records}

    async def find_id(self, topic_id: str) -> NamedTopic | None:
        """Looks at all of them: for what is rare."""
        topics = (await self.all(confirmed=True)).items()
        return next((NamedTopic(name, topic) for name, topic in topics if topic.topic_id == topic_id), None)

    async def is_going(self, topic_id: str) -> bool:
        """Deleted, or about to be: its logs go before all else."""
        return await self._claims.floor(PartitionId(topic_id, 0)) is None

    async def set(self, name: str, settings: dict[str, str]) -> Topic:
        """Replace a topic's settings; Conflict if it changed meanwhile."""
        record = await self._found(name)
        topic = msgspec.structs.replace(_topic(record), settings=settings)
        await put_one(self._store, keys.topic_key(name), _encode(topic), record.version)
        return topic

    async def alter(self, name: str, settings_of: Callable[[Topic], dict[str, str]]) -> Topic:
        """Change a topic's settings, whoever else changes them at the same time."""
        while True:
            topic = _topic(record := await self._found(name))
            altered = msgspec.structs.replace(topic, settings=settings_of(topic))
            try:
                await put_one(self._store, keys.topic_key(name), _encode(altered), record.version)
            except Conflict:
                continue  # somebody else was first: decide again
            return altered

    async def grow(self, name: str, partition_count: int) -> Topic:
        """Give a topic more logs. Rejected if it has as many already."""
        made: list[PartitionId] = []
        while True:
            record = await self._store.get(keys.topic_key(name), confirmed=True)
            if made and (record is None or _topic(record).topic_id != made[0].topic_id):
                await self._claims.bury_logs(made)  # deleted meanwhile, by somebody who did not know of these
            if record is None:
                raise Missing(f"there is no topic {name}")
            topic = _topic(record)
            if topic.partition_count >= partition_count:
                raise Rejected(f"topic {name} has {topic.partition_count} partitions already")
            grown = msgspec.structs.replace(topic, partition_count=partition_count)
            made = grown.partitions()[topic.partition_count :]
            await self._claims.make_logs(made)
            try:
                await put_one(self._store, keys.topic_key(name), _encode(grown), record.version)
            except Conflict:
                continue
            return grown

    async def delete(
        self, name: str, topic_id: str | None = None, before_name: Callable[[Topic], Awaitable[None]] | None = None
    ) -> Topic:
        """Its records are gone for readers and writers at once; the sweeper takes the bytes.

        `topic_id`: only that one, not a new topic that has the name by now. `before_name`: what else goes with it,
        after its logs and before its name: if it fails, the topic is still there to be deleted again."""
        while True:
            topic = _topic(record := await self._found(name))
            if topic_id not in (None, topic.topic_id):
                raise Missing(f"no topic has the id {topic_id}")
            await self._claims.bury_logs(topic.partitions())
            if before_name is not None:
                await before_name(topic)
            try:
                await self._store.delete(keys.topic_key(name), record.version)
            except Conflict:
                continue  # it was altered, or has grown
            return topic

    async def _found(self, name: str) -> Record:
        record = await self._store.get(keys.topic_key(name), confirmed=True)
        if record is None:
            raise Missing(f"there is no topic {name}")
        return record


def _topic(record: Record) -> Topic:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a topic ({error}); restore it from a backup") from error
