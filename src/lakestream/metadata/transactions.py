"""Records of transactional ids in the metadata store.

Below: store.py, keys.py.  Above: coordination/transactions, which decides the state transitions.

One record per transactional id contains all of its state: the producer id and epoch, the open transaction, its
partitions and groups, and its result. Every change is a conditional put on the version that was read, so that the
changes of all brokers have one order.
"""

import contextlib
from collections.abc import AsyncIterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from lakestream.errors import Conflict
from lakestream.metadata import keys
from lakestream.metadata.codec import check_format, decode_record
from lakestream.metadata.groups import Committed, Groups, OffsetUpdate
from lakestream.metadata.store import ABSENT, ANY, Changes, MetadataStore, Record, put_one
from lakestream.model import PartitionId

FORMAT: Final = 1
NAMES_PER_PAGE: Final = 1_000


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    COMMITTING = 2
    """The decision is stored; not all markers are written."""
    ABORTING = 3
    COMMITTED = 4
    ABORTED = 5


class Identity(NamedTuple):
    """Producer id and epoch in a producer's batches."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"


NO_IDENTITY: Final = Identity(-1, -1)


class PendingOffset(NamedTuple):
    """Offset of a group that is committed with the transaction."""

    partition: PartitionId
    committed: Committed
    base: int
    """Version of the committed offset when this one was received. Usually this one replaces that version."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a transactional id."""

    format: int = FORMAT
    producer: Identity
    """The current producer."""
    last: Identity = NO_IDENTITY
    """The producer before, if it was the same client: a request that it repeats gets the same response."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    number: int = 0
    """Number of the open or last transaction."""
    protocol: int = 1
    """Transaction version of the client: 2 adds partitions by writes, with a new epoch per transaction (KIP-890)."""
    started_ms: int = -1
    changed_ms: int
    partitions: tuple[PartitionId, ...] = ()
    """Partitions of the transaction, in order."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets may be part of it, in order."""
    offsets: dict[str, tuple[PendingOffset, ...]] = {}
    """By group."""
    marking: Identity = NO_IDENTITY
    """Producer id and epoch of the markers of a transaction that is completing."""
    client: str = ""
    """Address of the client that created the id. Empty in records of older brokers."""

    @property
    def is_open(self) -> bool:
        return self.state is TransactionState.ONGOING

    @property
    def is_ending(self) -> bool:
        return self.state in (TransactionState.COMMITTING, TransactionState.ABORTING)

    @property
    def commits(self) -> bool:
        return self.state in (TransactionState.COMMITTING, TransactionState.COMMITTED)


class StoredTransaction(NamedTuple):
    """A record and its version in the store."""

    record: Transaction
    version: int


class NamedTransaction(NamedTuple):
    transactional_id: str
    version: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Transaction).decode


class Transactions:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._groups = Groups(store)

    async def load(self, transactional_id: str, *, confirmed: bool = False) -> StoredTransaction | None:
        record = await self._store.get(keys.transaction_key(transactional_id), confirmed=confirmed)
        return None if record is None else StoredTransaction(_transaction(record), record.version)

    async def save(
        self, transactional_id: str, record: Transaction, last: StoredTransaction | None
    ) -> StoredTransaction:
        """Replaces the `last` record, or creates one if None. Raises Conflict if another broker changed it."""
        expected = ABSENT if last is None else last.version
        stored = await put_one(self._store, keys.transaction_key(transactional_id), _encode(record), expected)
        return StoredTransaction(record, stored.version)

    async def add_name(self, transactional_id: str) -> None:
        """Must be called before the record is created, so that every record can be found."""
        await put_one(self._store, keys.transaction_name_key(transactional_id), b"", ANY)

    async def remove(self, transactional_id: str, last: StoredTransaction) -> None:
        """Deletes the record. Raises Conflict if it is in use again.

        The name is deleted first: a broker that creates the record again then also creates the name again.
        """
        await self._store.delete(keys.transaction_name_key(transactional_id))
        try:
            await self._store.delete(keys.transaction_key(transactional_id), last.version)
        except Conflict:
            await self.add_name(transactional_id)
            raise

    async def remove_name(self, transactional_id: str, version: int) -> None:
        """Deletes a name. Raises Conflict if it was created again, and so is about to be used."""
        await self._store.delete(keys.transaction_name_key(transactional_id), version)

    async def names(self) -> list[str]:
        return [name.transactional_id for name in await self.versioned_names()]

    async def versioned_names(self) -> list[NamedTransaction]:
        names: list[NamedTransaction] = []
        start = ""
        while True:
            page = (await self._store.scan(keys.TRANSACTION_NAMES, start, limit=NAMES_PER_PAGE)).records
            names += [NamedTransaction(keys.transaction_text(record.name), record.version) for record in page]
            if len(page) < NAMES_PER_PAGE:
                return names
            start = f"{page[-1].name}{keys.NEXT_NAME}"

    def watch(self) -> AsyncIterator[Changes]:
        return self._store.watch(keys.TRANSACTIONS)

    # ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────

    async def add_group(self, group: str, transactional_id: str) -> None:
        """Must be called when a transaction of the id has offsets of the group, before the client gets a response:
        readers of the group's offsets must find the id. Called earlier, a concurrent reader could delete the entry."""
        await put_one(self._store, keys.group_transaction_key(group, transactional_id), b"", ANY)

    async def by_group(self, group: str) -> list[NamedTransaction]:
        """Returns the ids whose transactions may have offsets of the group. Usually they do: see completion.py."""
        records = (await self._store.scan(keys.group_transactions_folder(group), confirmed=True)).records
        return [NamedTransaction(keys.transaction_text(record.name), record.version) for record in records]

    async def group_entry(self, group: str, transactional_id: str) -> NamedTransaction | None:
        record = await self._store.get(keys.group_transaction_key(group, transactional_id))
        return None if record is None else NamedTransaction(transactional_id, record.version)

    async def remove_group(self, group: str, name: NamedTransaction) -> None:
        """Deletes an entry, unless it was put again since it was read.

        The record must have been without offsets of the group after the entry was read."""
        with contextlib.suppress(Conflict):
            await self._store.delete(keys.group_transaction_key(group, name.transactional_id), name.version)

    async def commit_offsets(self, record: Transaction) -> None:
        """Commits the offsets of a committed transaction."""
        for group, offsets in record.offsets.items():
            updates = {offset.partition: OffsetUpdate(offset.committed, offset.base) for offset in offsets}
            await self._groups.commit_transaction_offsets(group, updates)


def _transaction(record: Record) -> Transaction:
    transaction = decode_record(record, _decode, "a transaction")
    check_format(record, transaction.format, FORMAT)
    return transaction
