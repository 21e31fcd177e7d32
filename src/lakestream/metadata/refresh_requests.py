"""Refresh requests: records of brokers that wait until a table has certain offsets.

Written and deleted by coordination/freshness.py. Read by pipeline/refresh_requests.py, through a watch. A request only
makes the pipeline start earlier: the broker reads from the table whether it has the offsets. So a lost request, or one
that a dead broker left, has no effect on correctness.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, Changes, MetadataStore, Record, put_one
from lakestream.model import PartitionId

ABANDONED_MS: Final = 10 * 60 * 1000
"""No broker waits so long: the broker of an older request is dead."""
SCAN_MAX: Final = 1_000


class RefreshRequest(msgspec.Struct, frozen=True):
    """The table of a topic should reach these offsets, by partition."""

    topic_id: str
    ends: dict[int, int]

    def partitions(self) -> list[PartitionId]:
        return [PartitionId(self.topic_id, number) for number in self.ends]


class StoredRefreshRequest(NamedTuple):
    name: str
    request: RefreshRequest


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RefreshRequest).decode


class RefreshRequests:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, name: str, topic_id: str, ends: Mapping[int, int]) -> None:
        """Stores a request. `name` must be unique."""
        await put_one(
            self._store, keys.REFRESH_REQUESTS.key(name), _encode(RefreshRequest(topic_id, dict(ends))), ABSENT
        )

    async def remove(self, name: str) -> None:
        await self._store.delete(keys.REFRESH_REQUESTS.key(name))

    async def all(self) -> list[StoredRefreshRequest]:
        """Returns the pending requests, and deletes those of dead brokers."""
        records = (await self._store.scan(keys.REFRESH_REQUESTS, limit=SCAN_MAX)).records
        if not records:
            return []
        oldest_ms = await self._store.now_ms() - ABANDONED_MS
        requests = [
            StoredRefreshRequest(record.name, request)
            for record in records
            if (request := _request(record, oldest_ms)) is not None
        ]
        for name in {record.name for record in records} - {pending.name for pending in requests}:
            await self.remove(name)
        return requests

    def watch(self) -> AsyncIterator[Changes]:
        return self._store.watch(keys.REFRESH_REQUESTS.path + "/")


def _request(record: Record, oldest_ms: int) -> RefreshRequest | None:
    """Returns None for a request that is abandoned or cannot be decoded."""
    try:
        return _decode(record.value) if record.created_ms >= oldest_ms else None
    except msgspec.MsgspecError:
        return None
