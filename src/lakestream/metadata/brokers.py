"""The brokers that live: each has an ephemeral record, which goes when its process does."""

from typing import NamedTuple

import msgspec

from lakestream.errors import Conflict, Corrupt
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Put, Record, Session, Stored


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    zone: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Registered(NamedTuple):
    """A broker, and the version of its record; None: it has none yet."""

    broker: Broker
    version: int | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Broker).decode


class Brokers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self) -> list[Broker]:
        """In order of node id."""
        return [_broker(record) for record in (await self._store.scan(keys.BROKERS)).records]

    async def register(self, last: Registered, session: Session) -> Registered:
        """Under the id of the last registration, if its record is still ours or nobody's. Conflict: somebody lives
        under it, who may be ourselves, if an answer was lost."""
        refused = Conflict()
        for expected in (ABSENT,) if last.version is None else (last.version, ABSENT):
            key = keys.broker_key(last.broker.node_id)
            (answer,) = await self._store.put([Put(key, _encode(last.broker), expected, session)])
            if isinstance(answer, Stored):
                return Registered(last.broker, answer.version)
            if not isinstance(answer, Conflict):
                raise answer
            refused = answer
        raise refused


def _broker(record: Record) -> Broker:
    try:
        return _decode(record.value)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"metadata record {record.path} is not a broker ({error}); restore it from a backup") from error
