"""Transactional ids, as typed records over the metadata store.

Below: store.py, keys.py.  Above: coordination/transactions, which decides what becomes of one.

One record per transactional id holds all of it: who may write, which transaction is open, what belongs to it, and how
it ends. Whoever changes it names the version that it knows, so that all changes have one order, whichever brokers make
them.
"""

import contextlib
from collections.abc import AsyncIterator
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

from lakestream.errors import Conflict, Corrupt
from lakestream.metadata import keys
from lakestream.metadata.groups import Committed, Groups, Replacing
from lakestream.metadata.store import ABSENT, ANY, Changes, MetadataStore, Record, put_one
from lakestream.model import PartitionId

FORMAT: Final = 1
NAMES_AT_ONCE: Final = 1_000


class State(IntEnum):
    EMPTY = 0
    ONGOING = 1
    COMMITTING = 2
    """It is decided; not all logs know it yet."""
    ABORTING = 3
    COMMITTED = 4
    ABORTED = 5


class Identity(NamedTuple):
    """What a producer signs its batches with."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"


NOBODY: Final = Identity(-1, -1)


class PendingOffset(NamedTuple):
    """How far a group has read a partition, if the transaction commits."""

    partition: PartitionId
    committed: Committed
    base: int
    """Version of the committed offset when this one came. Mostly it replaces that one."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a transactional id."""

    format: int = FORMAT
    producer: Identity
    """Who may write now."""
    last: Identity = NOBODY
    """Who might before, if it was the same client: a request that it repeats is answered once more."""
    timeout_ms: int
    state: State = State.EMPTY
    number: int = 0
    """Of the open transaction, or of the last one."""
    protocol: int = 1
    """Of the client: 2 adds logs by writing to them, and has a new epoch for each transaction (KIP-890)."""
    started_ms: int = -1
    changed_ms: int
    partitions: tuple[PartitionId, ...] = ()
    """Logs that are part of it, in order."""
    groups: tuple[str, ...] = ()
    """Groups whose offsets may be part of it, in order."""
    offsets: dict[str, tuple[PendingOffset, ...]] = {}
    """By group."""
    marking: Identity = NOBODY
    """Who signs the markers of a transaction that is ending."""

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING

    @property
    def is_ending(self) -> bool:
        return self.state in (State.COMMITTING, State.ABORTING)

    @property
    def commits(self) -> bool:
        return self.state in (State.COMMITTING, State.COMMITTED)


class Known(NamedTuple):
    """A record, and the version at which it was read or written."""

    record: Transaction
    version: int


class NotedId(NamedTuple):
    transactional_id: str
    version: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Transaction).decode


class Transactions:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._groups = Groups(store)

    async def load(self, transactional_id: str, *, confirmed: bool = False) -> Known | None:
        record = await self._store.get(keys.transaction_key(transactional_id), confirmed=confirmed)
        return None if record is None else Known(_transaction(record), record.version)

    async def save(self, transactional_id: str, record: Transaction, known: Known | None) -> Known:
        """Conflict: it is not as it was known."""
        expected = ABSENT if known is None else known.version
        stored = await put_one(self._store, keys.transaction_key(transactional_id), _encode(record), expected)
        return Known(record, stored.version)

    async def name(self, transactional_id: str) -> None:
        """Before there is a record, so that each can be found."""
        await put_one(self._store, keys.transaction_name_key(transactional_id), b"", ANY)

    async def remove(self, transactional_id: str, known: Known) -> None:
        """Conflict: it is in use again. Its name goes first: who makes it anew writes it anew."""
        await self._store.delete(keys.transaction_name_key(transactional_id))
        try:
            await self._store.delete(keys.transaction_key(transactional_id), known.version)
        except Conflict:
            await self.name(transactional_id)
            raise

    async def remove_name(self, transactional_id: str, version: int) -> None:
        """Conflict: somebody wrote it anew, and is about to use it."""
        await self._store.delete(keys.transaction_name_key(transactional_id), version)

    async def names(self) -> list[str]:
        return [one.transactional_id for one in await self.named()]

    async def named(self) -> list[NotedId]:
        found: list[NotedId] = []
        start = ""
        while True:
            page = (await self._store.scan(keys.TRANSACTION_NAMES, start, limit=NAMES_AT_ONCE)).records
            found += [NotedId(keys.transaction_text(record.name), record.version) for record in page]
            if len(page) < NAMES_AT_ONCE:
                return found
            start = f"{page[-1].name}{keys.NEXT_NAME}"

    def watch(self) -> AsyncIterator[Changes]:
        return self._store.watch(keys.TRANSACTIONS)

    # ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────

    async def note_group(self, group: str, transactional_id: str) -> None:
        """Before a transaction holds offsets of a group: whoever reads these knows where to look for more."""
        await put_one(self._store, keys.group_transaction_key(group, transactional_id), b"", ANY)

    async def of_group(self, group: str) -> list[NotedId]:
        """Ids whose transactions may hold offsets of it."""
        found = await self._store.scan(keys.group_transactions_folder(group), confirmed=True)
        return [NotedId(keys.transaction_text(record.name), record.version) for record in found.records]

    async def forget_group(self, group: str, noted: NotedId) -> None:
        """There is no such id any longer, unless it is made anew just now."""
        with contextlib.suppress(Conflict):
            await self._store.delete(keys.group_transaction_key(group, noted.transactional_id), noted.version)

    async def commit_offsets(self, record: Transaction) -> None:
        """What a committed transaction holds."""
        for group, offsets in record.offsets.items():
            wanted = {one.partition: Replacing(one.committed, one.base) for one in offsets}
            await self._groups.commit_asked(group, wanted)


def _transaction(record: Record) -> Transaction:
    try:
        found = _decode(record.value)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corrupt(
            f"metadata record {record.path} is not a transaction ({error}); restore it from a backup"
        ) from error
    if found.format > FORMAT:
        raise Corrupt(f"metadata record {record.path} is of a newer Lakestream (format {found.format}): upgrade")
    return found
