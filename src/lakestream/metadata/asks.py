"""Who waits for a table: each writes a record that says for what, and takes it away when it waits no longer.

Written by: coordination/freshness.py.  Read by: pipeline/asked.py, which is woken by the change feed.  An ask is only a
call to hurry: whether the table has what was asked for is seen in the table. So it does no harm if one is lost, or left
behind by somebody who died.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, Changes, MetadataStore, Record, put_one
from lakestream.model import PartitionId

LEFT_MS: Final = 10 * 60 * 1000
"""Nobody waits for so long: whoever wrote it has died."""
SCAN_MAX: Final = 1_000


class Ask(msgspec.Struct, frozen=True):
    """The table of a topic is to reach these offsets, by partition."""

    topic_id: str
    ends: dict[int, int]

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(self.topic_id, number) for number in self.ends]


class Asked(NamedTuple):
    name: str
    ask: Ask


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Ask).decode


class Asks:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, name: str, topic_id: str, ends: Mapping[int, int]) -> None:
        """`name`: new, and the asker's own."""
        await put_one(self._store, keys.ASKED.key(name), _encode(Ask(topic_id, dict(ends))), ABSENT)

    async def remove(self, name: str) -> None:
        await self._store.delete(keys.ASKED.key(name))

    async def all(self) -> list[Asked]:
        """Of those who still wait; what the dead left is removed."""
        records = (await self._store.scan(keys.ASKED, limit=SCAN_MAX)).records
        if not records:
            return []
        left_ms = await self._store.now_ms() - LEFT_MS
        asked = [Asked(record.name, ask) for record in records if (ask := _ask(record, left_ms)) is not None]
        for name in {record.name for record in records} - {one.name for one in asked}:
            await self.remove(name)
        return asked

    def watch(self) -> AsyncIterator[Changes]:
        return self._store.watch(keys.ASKED.path + "/")


def _ask(record: Record, left_ms: int) -> Ask | None:
    """None: nobody waits for it, or could."""
    try:
        return _decode(record.value) if record.created_ms >= left_ms else None
    except msgspec.MsgspecError:
        return None
