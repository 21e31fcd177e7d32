"""Which node id belongs to which address, for good.

Before: broker.py, when a broker starts.  After: brokers.py registers it under that id, as long as it lives.

Clients know brokers by their ids, and keep the address of one until they next ask for metadata, which may take minutes.
A broker that took the id of another one which was just killed would be looked for where that one had been: a producer
that learns that its transaction is now coordinated by "node 0" would go on calling the dead one. So an id never leads
to two addresses. An address may have several ids: one that is started again so soon that its former life is not
forgotten yet takes another one.
"""

from itertools import count
from typing import Final

from lakestream.errors import Conflict, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.brokers import Brokers
from lakestream.metadata.store import ABSENT, MetadataStore, Put, Stored

TRIES_MAX: Final = 1_000


class NodeIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def of(self, address: str) -> int:
        """The lowest id that is this address's, or becomes it now, and under which nobody lives."""
        live = {broker.node_id for broker in await Brokers(self._store).all()}
        records = (await self._store.scan(keys.NODE_IDS)).records
        owners = {keys.node_id_of(record.path): record.value.decode(errors="replace") for record in records}
        tries = 0
        for node_id in count():
            if node_id in live or owners.get(node_id, address) != address:
                continue
            if node_id in owners or await self._take(node_id, address):
                return node_id
            tries += 1
            if tries >= TRIES_MAX:
                break
        raise Unavailable(f"others took {TRIES_MAX} node ids before {address} could; start it again")

    async def _take(self, node_id: int, address: str) -> bool:
        (answer,) = await self._store.put([Put(keys.node_id_key(node_id), address.encode(), ABSENT)])
        if isinstance(answer, Stored):
            return True
        if isinstance(answer, Conflict):
            return False  # another one was faster
        raise answer
