"""The brokers that live: each has an ephemeral record, which goes when its process does."""

import msgspec

from lakestream.errors import Conflict, Corrupt, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Put, Record, Session, Stored


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    zone: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Broker).decode

TRIES_MAX = 1_000


class Brokers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self) -> list[Broker]:
        """In order of node id."""
        return [_broker(record) for record in (await self._store.scan(keys.BROKERS)).records]

    async def register(self, broker: Broker, session: Session) -> Broker:
        """Take the first free node id, from the broker's own on."""
        taken = {known.node_id for known in await self.all()}
        for node_id in range(broker.node_id, broker.node_id + TRIES_MAX):
            if node_id in taken:
                continue
            mine = msgspec.structs.replace(broker, node_id=node_id)
            (answer,) = await self._store.put([Put(keys.broker_key(node_id), _encode(mine), ABSENT, session)])
            if isinstance(answer, Stored):
                return mine
            if not isinstance(answer, Conflict):
                raise answer
        raise Unavailable(f"no free node id within {TRIES_MAX} from {broker.node_id}")


def _broker(record: Record) -> Broker:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a broker ({error}); restore it from a backup") from error
