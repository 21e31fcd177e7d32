"""Cluster-wide records: the cluster id, the counter of producer ids, the node ids of addresses, and configs.

Before: broker.py, when a broker starts.  After: brokers.py registers it under its node id while it is alive.

A node id belongs permanently to one address. Clients identify brokers by node id, and cache an address until their next
metadata refresh, which may take minutes. If a broker took the id of another broker that was just killed, clients would
connect to the wrong address: a producer whose transaction is now coordinated by "node 0" would keep calling the dead
broker. An address may have several ids: a broker that restarts before its last session has expired takes another one.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

import msgspec

from lakestream.clock import Ids
from lakestream.errors import Conflict, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.brokers import Brokers
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one, update

PRODUCER_ID_BLOCK = 1_000


class Cluster:
    def __init__(self, store: MetadataStore, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._free_ids: range = range(0)

    async def id(self) -> str:
        """Returns the cluster id, which the first caller creates. It never changes."""

        def existing_or_new(record: Record | None) -> bytes:
            return self._ids.new().encode() if record is None else record.value

        return (await update(self._store, keys.CLUSTER_ID, existing_or_new)).decode()

    async def producer_id(self) -> int:
        """Returns a new producer id. Ids are reserved in blocks: the rest of a dead broker's block stays unused."""
        if not self._free_ids:
            self._free_ids = await self._take_block()
        producer_id, self._free_ids = self._free_ids[0], self._free_ids[1:]
        return producer_id

    async def _take_block(self) -> range:
        def next_free(record: Record | None) -> bytes:
            return str((0 if record is None else int(record.value)) + PRODUCER_ID_BLOCK).encode()

        end = int(await update(self._store, keys.PRODUCER_IDS, next_free))
        return range(end - PRODUCER_ID_BLOCK, end)


BROKER_KIND: Final = "broker"
GROUP_KIND: Final = "group"


class ConfigResource(NamedTuple):
    kind: str
    name: str
    """A group id or a node id; empty: all brokers."""


_encode_config = msgspec.json.Encoder().encode
_decode_config = msgspec.json.Decoder(dict[str, str]).decode


class ConfigStore:
    """Configs that were set on groups and brokers. Those of topics are in their own records (topics.py)."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self, *, confirmed: bool = False) -> dict[ConfigResource, dict[str, str]]:
        records = (await self._store.scan(keys.CONFIGS, confirmed=confirmed)).records
        return {ConfigResource(*keys.config_resource(record.name)): _config(record) for record in records}

    async def alter(
        self, resource: ConfigResource, change: Callable[[dict[str, str]], dict[str, str]]
    ) -> dict[str, str]:
        """Changes the configs of a resource, and returns them. Retries if they are changed concurrently."""
        key = keys.config_key(*resource)
        while True:
            record = await self._store.get(key, confirmed=True)
            before = {} if record is None else _config(record)
            after = change(before)
            if after == before:
                return after
            with suppress(Conflict):
                if after:
                    await put_one(self._store, key, _encode_config(after), ABSENT if record is None else record.version)
                elif record is not None:
                    await self._store.delete(key, record.version)
                return after


def _config(record: Record) -> dict[str, str]:
    return decode_record(record, _decode_config, "a config", "delete it")


TRIES_MAX: Final = 1_000


class NodeIds:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def of(self, address: str) -> int:
        """Returns the lowest id without a live broker that belongs to the address, or is assigned to it now."""
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
        raise Unavailable(f"other brokers took {TRIES_MAX} node ids before {address}: start it again")

    async def _take(self, node_id: int, address: str) -> bool:
        """Returns False if another broker was first."""
        try:
            await put_one(self._store, keys.node_id_key(node_id), address.encode(), ABSENT)
        except Conflict:
            return False
        return True
