"""Live brokers: each has an ephemeral record, which is deleted when its process ends."""

from typing import NamedTuple

import msgspec

from lakestream.errors import Conflict
from lakestream.metadata import keys
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ABSENT, MetadataStore, Put, Session, Stored


class Broker(msgspec.Struct, frozen=True):
    node_id: int
    host: str
    port: int
    zone: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class RegisteredBroker(NamedTuple):
    """A broker and the version of its record, or None if it has no record yet."""

    broker: Broker
    version: int | None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Broker).decode


class Brokers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self) -> list[Broker]:
        """Returns the live brokers in order of node id."""
        records = (await self._store.scan(keys.BROKERS)).records
        return [decode_record(record, _decode, "a broker") for record in records]

    async def register(self, last: RegisteredBroker, session: Session) -> RegisteredBroker:
        """Registers the broker under its last node id, if the id's record is its own or does not exist.

        Raises Conflict if another broker has the id. That may be this broker, if the response to its put was lost.
        """
        conflict = Conflict()
        for expected in (ABSENT,) if last.version is None else (last.version, ABSENT):
            key = keys.broker_key(last.broker.node_id)
            (result,) = await self._store.put([Put(key, _encode(last.broker), expected, session)])
            if isinstance(result, Stored):
                return RegisteredBroker(last.broker, result.version)
            if not isinstance(result, Conflict):
                raise result
            conflict = result
        raise conflict
