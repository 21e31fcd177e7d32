"""What is one for the whole cluster: its id, and the counter of producer ids."""

from lakestream.clock import Ids
from lakestream.errors import Conflict
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, put_one

PRODUCER_ID_BLOCK = 1_000


class Cluster:
    def __init__(self, store: MetadataStore, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._free_ids: range = range(0)

    async def id(self) -> str:
        """Made by whoever asks first; the same for all, for ever."""
        while (record := await self._store.get(keys.CLUSTER_ID)) is None:
            try:
                await put_one(self._store, keys.CLUSTER_ID, self._ids.new().encode(), ABSENT)
            except Conflict:
                continue
        return record.value.decode()

    async def producer_id(self) -> int:
        """One that was never given before. Taken in blocks: a broker that dies leaves its rest unused."""
        if not self._free_ids:
            self._free_ids = await self._take_block()
        producer_id, self._free_ids = self._free_ids[0], self._free_ids[1:]
        return producer_id

    async def _take_block(self) -> range:
        while True:
            record = await self._store.get(keys.PRODUCER_IDS)
            start = 0 if record is None else int(record.value)
            expected = ABSENT if record is None else record.version
            try:
                await put_one(self._store, keys.PRODUCER_IDS, str(start + PRODUCER_ID_BLOCK).encode(), expected)
            except Conflict:
                continue  # another broker took this block
            return range(start, start + PRODUCER_ID_BLOCK)
