"""The chain of claims of each log, as typed records over the metadata store.

Below: store.py, keys.py.  Above: data/log, which decides what a chain means.  Nothing is decided here.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from lakestream.errors import Conflict, Corrupt, Missing, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, Create, Created, Key, MetadataStore, Put, Record, Stored, put_one
from lakestream.model import PartitionId

END_OF_TIME: Final = 2**63 - 1
"""The floor of a log that is being deleted: no offset is above it."""

LOGS_MADE_TOGETHER: Final = 1_000
LOGS_BURIED_TOGETHER: Final = 256
"""A topic may have very many: they share round trips, and leave room for others in between."""

NO_PRODUCER: Final = -1
NO_TRANSACTION: Final = -1


class Medium(IntEnum):
    """Where the bytes of a claim lie: an object in the bucket, or a segment file on disk."""

    OBJECT = 0
    SEGMENT = 1


class Kind(IntEnum):
    PLAIN = 0
    TRANSACTIONAL = 1
    COMMIT = 2
    ABORT = 3


class BatchInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the fold must know of one record batch, so that it never reads the bytes."""

    byte_start: int
    byte_end: int
    record_count: int
    kind: Kind = Kind.PLAIN
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence_first: int = -1
    sequence_last: int = -1
    transaction: int = NO_TRANSACTION


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Offsets `[offset_start, offset_end)` are these bytes. The same `claim_id` always means the same content."""

    offset_start: int
    offset_end: int
    claim_id: str
    writer: str
    medium: Medium
    name: str
    """Of the object or segment."""
    stored_ms: int
    """When the bytes were stored at the earliest, by the writer's clock: for a segment, when it was made."""
    appended_ms: int
    max_timestamp: int
    batches: tuple[BatchInfo, ...]

    @property
    def extent_id(self) -> str:
        """What the footer of its object calls these bytes: the claim id without the number of the try."""
        return self.claim_id.rpartition(".")[0]


class Dated(NamedTuple):
    """A claim as the store has it."""

    claim: Claim
    created_ms: int


class Chain(NamedTuple):
    """Claims in order of offset, and the floor as it was read with them. No floor: the log is gone."""

    claims: list[Dated]
    floor: int | None


class Claimed(NamedTuple):
    created_ms: int
    floor: int | None
    repeated: bool = False
    """An earlier try of it got no clear answer, and may have taken effect long before."""


class StoredFold(NamedTuple):
    body: bytes
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode


class Claims:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, claims: Sequence[tuple[PartitionId, Claim]]) -> list[Claimed | Conflict | Unavailable]:
        """Create each at its start offset only if absent, then read its floor on the node that answered."""
        answers = await self._store.create(
            [
                Create(keys.claim_key(partition, claim.offset_start), _encode(claim), keys.floor_key(partition))
                for partition, claim in claims
            ]
        )
        return [
            Claimed(answer.created_ms, _floor(answer.guard), answer.repeated) if isinstance(answer, Created) else answer
            for answer in answers
        ]

    async def scan(
        self,
        partition: PartitionId,
        offset_start: int,
        offset_end: int | None = None,
        *,
        limit: int | None = None,
        confirmed: bool = False,
    ) -> Chain:
        """The claims that start in `[offset_start, offset_end)`, and the floor."""
        scanned = await self._store.scan(
            keys.claims_folder(partition),
            keys.claim_name(offset_start),
            keys.FLOOR_NAME if offset_end is None else keys.claim_name(offset_end),
            limit=limit,
            guard=keys.floor_key(partition),
            confirmed=confirmed,
        )
        return Chain([_dated(record) for record in scanned.records], _floor(scanned.guard))

    async def holding(self, partition: PartitionId, offset: int) -> Dated | None:
        """The last claim that starts at or before `offset`. It counts only if the floor allows its start."""
        record = await self._store.floor(keys.claims_folder(partition), keys.claim_name(offset))
        return None if record is None else _dated(record)

    async def delete(self, partition: PartitionId, offset_start: int) -> None:
        await self._store.delete(keys.claim_key(partition, offset_start))

    async def drop_below(self, partition: PartitionId, offset: int) -> None:
        """Delete the claims that start below `offset`. The floor must have been raised first."""
        await self._store.delete_range(keys.claims_folder(partition), keys.claim_name(0), keys.claim_name(offset))

    async def floor(self, partition: PartitionId) -> int | None:
        """None: the log is gone."""
        return _floor(await self._store.get(keys.floor_key(partition), confirmed=True))

    async def raise_floor(self, partition: PartitionId, offset: int) -> None:
        """Forward only. Raises Missing where the log is gone."""
        await self._raise(keys.floor_key(partition), offset, f"log {partition}")

    async def start(self, partition: PartitionId) -> int:
        """Where readers begin, unless the records before it are gone for other reasons."""
        return _number(await self._store.get(keys.start_key(partition))) or 0

    async def raise_start(self, partition: PartitionId, offset: int) -> None:
        """Forward only. The key is made when it is first needed. Raises Missing where the log is gone."""
        key = keys.start_key(partition)
        with contextlib.suppress(Conflict):
            await put_one(self._store, key, b"0", ABSENT)
        await self._raise(key, offset, f"log {partition}")
        if await self.floor(partition) is None:
            await self._store.delete(key)  # the topic was deleted just before
            raise Missing(f"log {partition} is gone: its topic was deleted")

    async def load_fold(self, partition: PartitionId, *, confirmed: bool = False) -> StoredFold | None:
        record = await self._store.get(keys.fold_key(partition), confirmed=confirmed)
        return None if record is None else StoredFold(record.value, record.version)

    async def save_fold(self, partition: PartitionId, body: bytes, version: int | None) -> int:
        """Replace the fold of `version` (None: there was none); Conflict if another was saved since."""
        stored = await put_one(self._store, keys.fold_key(partition), body, ABSENT if version is None else version)
        return stored.version

    async def delete_fold(self, partition: PartitionId) -> None:
        await self._store.delete(keys.fold_key(partition))

    async def table_end(self, partition: PartitionId) -> int:
        return _number(await self._store.get(keys.table_end_key(partition))) or 0

    async def advance_table_end(self, partition: PartitionId, offset: int) -> None:
        """Forward only."""
        await self._raise(keys.table_end_key(partition), offset, f"table end of {partition}")

    async def make_logs(self, partitions: Sequence[PartitionId]) -> None:
        """A log exists from the moment that it has a floor, its last key. Made twice, it is made once."""
        for some in _chunks(partitions, LOGS_MADE_TOGETHER):
            for key_of in (keys.table_end_key, keys.floor_key):
                answers = await self._store.put([Put(key_of(partition), b"0", ABSENT) for partition in some])
                for answer in answers:
                    if not isinstance(answer, Stored | Conflict):
                        raise answer

    async def bury_logs(self, partitions: Sequence[PartitionId]) -> None:
        """Delete logs: first nobody may append, then the records go, the floor last. Safe to repeat after a crash."""
        for some in _chunks(partitions, LOGS_BURIED_TOGETHER):
            ends = await asyncio.gather(*map(self.bury_log, some), return_exceptions=True)
            for error in ends:
                if error is not None:
                    raise error

    async def bury_log(self, partition: PartitionId) -> None:
        try:
            await self.raise_floor(partition, END_OF_TIME)
        except Missing:
            await self._store.delete(keys.table_end_key(partition))  # it was only half made
            return
        await self.drop_below(partition, END_OF_TIME)
        await self.delete_fold(partition)
        await self._store.delete(keys.table_end_key(partition))
        await self._store.delete(keys.start_key(partition))
        await self._store.delete(keys.floor_key(partition))

    async def _raise(self, key: Key, offset: int, what: str) -> None:
        while True:
            record = await self._store.get(key, confirmed=True)
            if record is None:
                raise Missing(f"{what} is gone: its topic was deleted")
            if _offset(record) >= offset:
                return
            try:
                await put_one(self._store, key, str(offset).encode(), record.version)
            except Conflict:
                continue  # somebody else raised it: look how far
            return


def _chunks(partitions: Sequence[PartitionId], size: int) -> Iterator[Sequence[PartitionId]]:
    return (partitions[start : start + size] for start in range(0, len(partitions), size))


def _floor(record: Record | None) -> int | None:
    """A log that is being deleted is gone already, for all who append and read."""
    floor = _number(record)
    return None if floor == END_OF_TIME else floor


def _number(record: Record | None) -> int | None:
    return None if record is None else _offset(record)


def _offset(record: Record) -> int:
    try:
        return int(record.value)
    except ValueError as error:
        raise _damaged(record, "an offset", error) from error


def _dated(record: Record) -> Dated:
    try:
        return Dated(_decode_claim(record.value), record.created_ms)
    except (msgspec.DecodeError, ValueError) as error:
        raise _damaged(record, "a claim", error) from error


def _damaged(record: Record, what: str, error: Exception) -> Corrupt:
    return Corrupt(
        f"metadata record {record.path} is not {what} ({error}); the metadata store was damaged or written by "
        f"another program: restore it from a backup"
    )
