"""The brokers that live: each has an ephemeral record, which goes when its process does."""

from typing import NamedTuple

import msgspec

from lakestream.errors import Conflict, Corrupt, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Put, Record, Session, Stored


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    zone: str = ""


class Registered(NamedTuple):
    """A broker, and the version of its record; None: it has none yet."""

    broker: Broker
    version: int | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Broker).decode

TRIES_MAX = 1_000


class Brokers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self) -> list[Broker]:
        """In order of node id."""
        return [_broker(record) for record in (await self._store.scan(keys.BROKERS)).records]

    async def register(self, last: Registered, session: Session) -> Registered:
        """Take the id of the last registration if its record is still ours or nobody's, else the first free one."""
        first = last.broker.node_id
        taken = {known.node_id for known in await self.all()}
        for node_id in range(first, first + TRIES_MAX):
            ours = last.version is not None and node_id == first
            if node_id in taken and not ours:
                continue
            mine = msgspec.structs.replace(last.broker, node_id=node_id)
            expected = last.version if ours and node_id in taken else ABSENT
            (answer,) = await self._store.put([Put(keys.broker_key(node_id), _encode(mine), expected, session)])
            if isinstance(answer, Stored):
                return Registered(mine, answer.version)
            if not isinstance(answer, Conflict):
                raise answer
        raise Unavailable(f"no free node id within {TRIES_MAX} from {first}")


def _broker(record: Record) -> Broker:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a broker ({error}); restore it from a backup") from error
