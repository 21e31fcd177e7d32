"""Records of each log in the metadata store: its chain of claims, floor, start, partition state and table end.

Below: store.py, keys.py.  Above: data/log, which interprets the chain. Nothing is decided here.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from lakestream.errors import Conflict, Missing, Unavailable
from lakestream.metadata import keys
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ABSENT, Create, Created, Key, MetadataStore, Put, Record, Stored, put_one, update
from lakestream.model import PartitionId

END_OF_TIME: Final = 2**63 - 1
"""The floor of a log that is being deleted: no offset is above it."""

LOGS_PER_CREATE: Final = 1_000
LOGS_PER_DELETE: Final = 256
"""A topic may have very many logs: they share round trips, and other calls can run between the batches."""

NO_PRODUCER: Final = -1
NO_TRANSACTION: Final = -1


class Medium(IntEnum):
    """Location of the bytes of a claim: an object in the bucket, or a segment file on disk."""

    OBJECT = 0
    SEGMENT = 1


class BatchKind(IntEnum):
    PLAIN = 0
    TRANSACTIONAL = 1
    COMMIT = 2
    ABORT = 3


class BatchInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Header fields of a record batch that the partition state needs, so that it never reads the bytes."""

    byte_start: int
    byte_end: int
    record_count: int
    kind: BatchKind = BatchKind.PLAIN
    producer_id: int = NO_PRODUCER
    epoch: int = -1
    sequence_first: int = -1
    sequence_last: int = -1
    transaction: int = NO_TRANSACTION


class Claim(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Assigns the offsets `[offset_start, offset_end)` to bytes. Equal `claim_id`s always have equal contents."""

    offset_start: int
    offset_end: int
    claim_id: str
    writer: str
    medium: Medium
    name: str
    """Name of the object or segment."""
    stored_ms: int
    """Earliest time at which the bytes were stored, by the writer's clock. For a segment, when it was created."""
    appended_ms: int
    max_timestamp: int
    batches: tuple[BatchInfo, ...]

    @property
    def extent_id(self) -> str:
        """Id of these bytes in the footer of their object: the claim id without the number of the attempt."""
        return self.claim_id.rpartition(".")[0]


class StoredClaim(NamedTuple):
    """A claim as read from the store."""

    claim: Claim
    created_ms: int


class Chain(NamedTuple):
    """Claims in order of offset, and the floor that was read with them. None: the log is deleted."""

    claims: list[StoredClaim]
    floor: int | None


class Claimed(NamedTuple):
    created_ms: int
    floor: int | None
    repeated: bool = False
    """The outcome of an earlier attempt is unknown: it may have taken effect long before."""


class StoredState(NamedTuple):
    """Encoded partition state."""

    body: bytes
    version: int


_encode = msgspec.msgpack.Encoder().encode
_decode_claim = msgspec.msgpack.Decoder(Claim).decode


class Claims:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def create(self, claims: Sequence[tuple[PartitionId, Claim]]) -> list[Claimed | Conflict | Unavailable]:
        """Creates each claim at its start offset if absent, then reads its floor on the node that responded."""
        results = await self._store.create(
            [
                Create(keys.claim_key(partition, claim.offset_start), _encode(claim), keys.floor_key(partition))
                for partition, claim in claims
            ]
        )
        return [
            Claimed(result.created_ms, _floor(result.guard), result.repeated) if isinstance(result, Created) else result
            for result in results
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
        """Returns the claims that start in `[offset_start, offset_end)`, and the floor."""
        scanned = await self._store.scan(
            keys.claims_folder(partition),
            keys.claim_name(offset_start),
            keys.FLOOR_NAME if offset_end is None else keys.claim_name(offset_end),
            limit=limit,
            guard=keys.floor_key(partition),
            confirmed=confirmed,
        )
        return Chain([_stored_claim(record) for record in scanned.records], _floor(scanned.guard))

    async def claim_at(self, partition: PartitionId, offset: int) -> StoredClaim | None:
        """Returns the last claim that starts at or before `offset`. It is valid only if it is not below the floor."""
        record = await self._store.floor(keys.claims_folder(partition), keys.claim_name(offset))
        return None if record is None else _stored_claim(record)

    async def delete(self, partition: PartitionId, offset_start: int) -> None:
        await self._store.delete(keys.claim_key(partition, offset_start))

    async def delete_below(self, partition: PartitionId, offset: int) -> None:
        """Deletes the claims that start below `offset`. The floor must have been raised before."""
        await self._store.delete_range(keys.claims_folder(partition), keys.claim_name(0), keys.claim_name(offset))

    async def floor(self, partition: PartitionId) -> int | None:
        """Returns the floor, or None if the log is deleted."""
        return _floor(await self._store.get(keys.floor_key(partition), confirmed=True))

    async def raise_floor(self, partition: PartitionId, offset: int) -> None:
        """Raises the floor, unless it is as high already. Raises Missing if the log is deleted."""
        await self._raise(keys.floor_key(partition), offset, f"log {partition}")

    async def start(self, partition: PartitionId) -> int:
        """Returns the offset below which records are no longer served."""
        return _number(await self._store.get(keys.start_key(partition))) or 0

    async def raise_start(self, partition: PartitionId, offset: int) -> None:
        """Raises the start, unless it is as high already, and creates its key. Raises Missing if the log is deleted."""
        key = keys.start_key(partition)
        with contextlib.suppress(Conflict):
            await put_one(self._store, key, b"0", ABSENT)
        await self._raise(key, offset, f"log {partition}")
        if await self.floor(partition) is None:
            await self._store.delete(key)  # the topic was deleted concurrently
            raise Missing(f"log {partition} does not exist: its topic was deleted")

    async def load_state(self, partition: PartitionId, *, confirmed: bool = False) -> StoredState | None:
        record = await self._store.get(keys.fold_key(partition), confirmed=confirmed)
        return None if record is None else StoredState(record.value, record.version)

    async def save_state(self, partition: PartitionId, body: bytes, version: int | None) -> int:
        """Replaces the state of `version`, or creates it if None. Raises Conflict if another was saved since."""
        stored = await put_one(self._store, keys.fold_key(partition), body, ABSENT if version is None else version)
        return stored.version

    async def delete_state(self, partition: PartitionId) -> None:
        await self._store.delete(keys.fold_key(partition))

    async def table_end(self, partition: PartitionId) -> int:
        return _number(await self._store.get(keys.table_end_key(partition))) or 0

    async def advance_table_end(self, partition: PartitionId, offset: int) -> None:
        """Raises the table end, unless it is as high already. Raises Missing if the log is deleted."""
        await self._raise(keys.table_end_key(partition), offset, f"table end of {partition}")

    async def create_logs(self, partitions: Sequence[PartitionId]) -> None:
        """Creates logs. Idempotent. A log exists when it has a floor, the key that is created last."""
        for chunk in _chunks(partitions, LOGS_PER_CREATE):
            for key_of in (keys.table_end_key, keys.floor_key):
                results = await self._store.put([Put(key_of(partition), b"0", ABSENT) for partition in chunk])
                for result in results:
                    if not isinstance(result, Stored | Conflict):
                        raise result

    async def delete_logs(self, partitions: Sequence[PartitionId]) -> None:
        """Deletes logs: first appends are fenced, then the records are deleted, the floor last. Idempotent."""
        for chunk in _chunks(partitions, LOGS_PER_DELETE):
            results = await asyncio.gather(*map(self.delete_log, chunk), return_exceptions=True)
            for error in results:
                if error is not None:
                    raise error

    async def delete_log(self, partition: PartitionId) -> None:
        try:
            await self.raise_floor(partition, END_OF_TIME)
        except Missing:
            await self._store.delete(keys.table_end_key(partition))  # its creation was not finished
            return
        await self.delete_below(partition, END_OF_TIME)
        await self.delete_state(partition)
        await self._store.delete(keys.table_end_key(partition))
        await self._store.delete(keys.start_key(partition))
        await self._store.delete(keys.floor_key(partition))

    async def _raise(self, key: Key, offset: int, name: str) -> None:
        def raised(record: Record | None) -> bytes:
            if record is None:
                raise Missing(f"{name} does not exist: its topic was deleted")
            return record.value if _offset(record) >= offset else str(offset).encode()

        await update(self._store, key, raised, confirmed=True)


def _chunks(partitions: Sequence[PartitionId], size: int) -> Iterator[Sequence[PartitionId]]:
    return (partitions[start : start + size] for start in range(0, len(partitions), size))


def _floor(record: Record | None) -> int | None:
    """Returns None also for a log that is being deleted: appends and reads must treat it as deleted."""
    floor = _number(record)
    return None if floor == END_OF_TIME else floor


def _number(record: Record | None) -> int | None:
    return None if record is None else _offset(record)


def _offset(record: Record) -> int:
    return decode_record(record, int, "an offset")


def _stored_claim(record: Record) -> StoredClaim:
    return StoredClaim(decode_record(record, _decode_claim, "a claim"), record.created_ms)


class Lag(NamedTuple):
    """Lag of a table behind its log. For metrics and status, never for a decision."""

    records: int = 0
    oldest_ms: int = 0
    """When the oldest record that is not in the table was appended; 0 if all are in the table."""


async def lag_of(claims: Claims, partition: PartitionId) -> Lag:
    """Returns the lag up to the log's end, including records of open transactions.

    Reads three small records: the log's last claim, the table end, and the claim there.
    """
    newest = await claims.claim_at(partition, END_OF_TIME)
    if newest is None:
        return Lag()
    table_end = await claims.table_end(partition)
    records = newest.claim.offset_end - table_end
    if records <= 0:
        return Lag()
    oldest = await claims.claim_at(partition, table_end) or newest
    return Lag(records, oldest.claim.appended_ms)
