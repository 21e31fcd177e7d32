"""Transactions of this broker: of the ids that it coordinates, and of the batches that it appends for any id.

Before: protocol/kafka/handlers.  After: state_machine.py decides, record_cache.py stores decisions, completion.py
completes them, expiration.py aborts transactions that time out.

No broker calls another one. The coordinator of an id is a live broker, chosen by rendezvous hash, so that its producer
sends all requests to one broker and one broker checks for timeouts. It holds no exclusive state: the record in the
store, changed by compare-and-set, is authoritative, and two brokers that both consider themselves the coordinator do no
harm.

A producer may send a batch to any broker, which finds the transaction in its cache or in the store. Before the first
batch of a transaction is appended to a partition, the record is read once more (`transaction_of`), after the partition
was read up to its end: the transaction can begin there only while the record is open and contains the partition.
Therefore any broker that ends the transaction later writes its marker into this partition, after the batch. If the
marker was written first, it has the batch's offset, and the batch is rejected.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from lakestream.aio.gather import gather_limited
from lakestream.aio.single_flight import Coalescer
from lakestream.clock import Clock
from lakestream.coordination import placement
from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.completion import TransactionCompleter
from lakestream.coordination.transactions.expiration import TransactionExpirer
from lakestream.coordination.transactions.id_limits import TransactionalIdLimits
from lakestream.coordination.transactions.record_cache import Decide, TransactionRecordCache
from lakestream.coordination.transactions.state_machine import CLASSIC, EPOCH_LAST, IMPLICIT, Busy
from lakestream.data.log.log import Log
from lakestream.errors import Fenced, LakestreamError, Rejected, Unavailable
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import BatchInfo
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.transactions import Identity, PendingOffset, StoredTransaction, Transaction, Transactions
from lakestream.model import PartitionId

BUSY_MS: Final = 1_000
"""How long a request waits for the previous transaction to complete, before the client gets CONCURRENT_TRANSACTIONS."""
RETRY_MS: Final = 50
"""A transaction that another broker completes may cause no notification here."""
PRODUCERS_MAX: Final = 100_000
LOADS_AT_ONCE: Final = 64
NO_ID: Final = -1


class NotCoordinator(Unavailable):
    """The client must find the coordinator again."""


class _OpenTransaction(NamedTuple):
    producer_id: int
    number: int


class CoordinatedTransaction(NamedTuple):
    transactional_id: str
    record: Transaction


class TransactionFigures(NamedTuple):
    """Counts of the transactions that this broker coordinates."""

    open: int
    overdue: int
    oldest_ms: int
    completing: int
    committed: int
    aborted: int
    timed_out: int


class TransactionCoordinator:
    def __init__(
        self,
        store: MetadataStore,
        log: Log,
        metadata_cache: MetadataCache,
        registration: BrokerRegistration,
        cluster: Cluster,
        clock: Clock,
        id_limits: TransactionalIdLimits | None = None,
    ) -> None:
        self._records = Transactions(store)
        self._cache = TransactionRecordCache(self._records, clock)
        self.completer = TransactionCompleter(self._cache, self._records, log, clock)
        self._metadata_cache = metadata_cache
        self._registration = registration
        self._cluster = cluster
        self._clock = clock
        self.id_limits = id_limits or TransactionalIdLimits(clock)
        self.expirer = TransactionExpirer(
            self._cache, self._records, self.completer, clock, self.coordinates, metadata_cache, self.id_limits
        )
        self._record_reads: Coalescer[str, StoredTransaction | None] = Coalescer("transactions.read")
        self._pending_reads: Coalescer[str, frozenset[PartitionId]] = Coalescer("transactions.read_pending")
        self._transactional_ids: dict[int, str] = {}  # by producer id; least recently used first
        self._registered_groups: dict[tuple[str, str], _OpenTransaction] = {}  # by group and transactional id

    def start(self) -> None:
        self.expirer.start()

    async def close(self) -> None:
        await self.expirer.close()
        await self.completer.close()
        await self._record_reads.close()
        await self._pending_reads.close()

    def figures(self) -> TransactionFigures:
        completer = self.completer
        return TransactionFigures(
            *self.expirer.figures(), len(completer), completer.committed, completer.aborted, self.expirer.timed_out
        )

    # ── choice of the coordinator ────────────────────────────────────────────────────────────────────────────────────

    def coordinator_of(self, transactional_id: str) -> Broker:
        return placement.chosen(
            f"transaction:{transactional_id}", self._metadata_cache.brokers or [self._registration.broker]
        )

    def coordinates(self, transactional_id: str) -> bool:
        if not self._registration.is_registered:
            return False
        return self.coordinator_of(transactional_id).node_id == self._registration.broker.node_id

    def check_coordinator(self, transactional_id: str) -> None:
        if not self.coordinates(transactional_id):
            raise NotCoordinator(f"this broker does not coordinate the transactional id {transactional_id}")

    # ── requests of producers to their coordinator ───────────────────────────────────────────────────────────────────

    async def init(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None, client: str = ""
    ) -> Identity:
        """Returns the producer id and epoch of the new producer. Raises Busy while an open transaction is aborted, and
        TooManyTransactionalIds if the id is new and exceeds a limit. `client`: the client's address."""
        self.check_coordinator(transactional_id)
        known = self._cache.cached(transactional_id) or await self._cache.load(transactional_id, confirmed=True)
        if known is None:
            self.id_limits.create(transactional_id, client)
        await self._records.add_name(transactional_id)
        fresh_id = await self._cluster.producer_id()

        def decide(record: Transaction | None) -> Transaction:
            return state_machine.init(record, expected, timeout_ms, fresh_id, self._clock.now_ms(), client)

        stored = await self._change(transactional_id, decide)
        if stored.record.is_ending:
            self.completer.begin(transactional_id, just_decided=True)
            stored = await self._change(transactional_id, decide)
        if stored.record.is_ending:
            raise Busy(f"transaction {stored.record.number} of {transactional_id} is being aborted: retry")
        return stored.record.producer

    async def add_partitions(
        self, transactional_id: str, producer: Identity, partitions: Collection[PartitionId]
    ) -> None:
        self.check_coordinator(transactional_id)
        await self._change(
            transactional_id,
            lambda record: state_machine.add(record, producer, partitions, CLASSIC, self._clock.now_ms()),
        )

    async def verify(self, transactional_id: str, producer: Identity, partitions: Collection[PartitionId]) -> None:
        """Raises unless these partitions were added to the open transaction."""
        self.check_coordinator(transactional_id)
        stored = await self._cache.load(transactional_id, confirmed=True)
        state_machine.number_for(None if stored is None else stored.record, producer, partitions)

    async def add_group(self, transactional_id: str, producer: Identity, group: str) -> None:
        self.check_coordinator(transactional_id)
        await self._change(
            transactional_id,
            lambda record: state_machine.add_group(record, producer, group, CLASSIC, self._clock.now_ms()),
        )

    async def end(self, transactional_id: str, producer: Identity, *, commit: bool, protocol: int) -> Identity:
        """Returns, after the decision is stored, the producer id and epoch to continue with.

        The markers are written after that."""
        self.check_coordinator(transactional_id)
        fresh_id = await self._cluster.producer_id() if producer.epoch >= EPOCH_LAST else NO_ID
        open_at_first: int | None = None

        def decide(record: Transaction | None) -> Transaction:
            nonlocal open_at_first
            if record is not None and record.is_open:
                if open_at_first not in (
                    None,
                    record.number,
                ):  # another broker ended it, and the client began the next one
                    raise Unavailable(f"{producer} has begun another transaction since this request: retry")
                open_at_first = record.number
            return state_machine.end(
                record, producer, commit=commit, protocol=protocol, fresh_id=fresh_id, now_ms=self._clock.now_ms()
            )

        stored = await self._change(transactional_id, decide)
        if stored.record.is_ending:
            self.completer.begin(transactional_id, just_decided=True)
        return stored.record.producer

    # ── batches, on any broker ───────────────────────────────────────────────────────────────────────────────────────

    def cached_number(
        self, transactional_id: str, producer: Identity, partitions: Collection[PartitionId]
    ) -> int | None:
        """Returns the number of the open transaction from the cache, if all these partitions were added to it.

        The log calls `transaction_of` where the record must be current."""
        record = self._cache.current(transactional_id)
        try:
            number = None if record is None else state_machine.number_for(record, producer, partitions)
        except (Fenced, Rejected):
            return None
        self._cache_producer(producer.producer_id, transactional_id)
        return number

    async def number_for_batches(
        self, transactional_id: str, producer: Identity, partitions: Collection[PartitionId], protocol: int
    ) -> int:
        """Returns the number of the transaction that batches for these partitions belong to.

        For clients of the implicit protocol it begins the transaction and adds the partitions."""
        self._cache_producer(producer.producer_id, transactional_id)
        number = self.cached_number(transactional_id, producer, partitions)
        if number is not None:
            return number
        if protocol == CLASSIC:
            await self._cache.load(transactional_id)
            number = self.cached_number(transactional_id, producer, partitions)
            if number is None:
                stored = await self._cache.load(transactional_id, confirmed=True)
                number = state_machine.number_for(None if stored is None else stored.record, producer, partitions)
            return number
        stored = await self._change(
            transactional_id,
            lambda record: state_machine.add(record, producer, partitions, IMPLICIT, self._clock.now_ms()),
        )
        return stored.record.number

    async def transaction_of(self, partition: PartitionId, batch: BatchInfo) -> int | LakestreamError:
        """Returns the number of the transaction that this batch belongs to, from a confirmed read of the record."""
        transactional_id = self._transactional_ids.get(batch.producer_id)
        if transactional_id is None:
            raise Unavailable(f"producer {batch.producer_id} is no longer cached by this broker: retry")
        # Concurrent calls for many partitions share a read that begins after they were made.
        stored = await self._record_reads.read(
            transactional_id, lambda: self._cache.load(transactional_id, confirmed=True)
        )
        try:
            return state_machine.number_for(
                None if stored is None else stored.record, Identity(batch.producer_id, batch.epoch), [partition]
            )
        except (Fenced, Rejected) as error:
            return error

    def _cache_producer(self, producer_id: int, transactional_id: str) -> None:
        self._transactional_ids.pop(producer_id, None)
        self._transactional_ids[producer_id] = transactional_id
        if len(self._transactional_ids) > PRODUCERS_MAX:
            del self._transactional_ids[next(iter(self._transactional_ids))]

    # ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────

    async def ensure_group(self, transactional_id: str, producer: Identity, group: str, protocol: int) -> None:
        """Returns when the transaction is open and contains the group.

        Then the previous transaction has completed, and the versions of the group's committed offsets that are read now
        are the right ones to replace."""
        record = self._cache.current(transactional_id)
        if record is not None and record.is_open and record.producer == producer and group in record.groups:
            return
        await self._change(
            transactional_id,
            lambda record: state_machine.with_group(record, producer, group, protocol, self._clock.now_ms()),
        )

    async def put_offsets(
        self, transactional_id: str, producer: Identity, group: str, offsets: Sequence[PendingOffset], protocol: int
    ) -> None:
        """Adds offsets that are committed with the transaction. Called by the group's coordinator after
        `ensure_group`."""
        stored = await self._change(
            transactional_id,
            lambda record: state_machine.put_offsets(record, producer, group, offsets, protocol, self._clock.now_ms()),
        )
        if stored.record.offsets.get(group):
            transaction = _OpenTransaction(producer.producer_id, stored.record.number)
            await self._register_group(group, transactional_id, transaction)

    async def pending(self, group: str) -> frozenset[PartitionId]:
        """Returns the partitions with an offset in a transaction that has not completed.

        It reads the records of the ids whose transactions have offsets of the group. After a rebalance all members
        call this concurrently: they share a read that begins after their calls."""
        return await self._pending_reads.read(group, lambda: self._read_pending(group))

    async def _read_pending(self, group: str) -> frozenset[PartitionId]:
        partitions: set[PartitionId] = set()
        entries = await self._records.by_group(group)
        loads = [self._cache.load(one.transactional_id, confirmed=True) for one in entries]
        for one, stored in zip(entries, await gather_limited(loads, LOADS_AT_ONCE), strict=True):
            if stored is not None and (offsets := stored.record.offsets.get(group)):
                partitions.update(offset.partition for offset in offsets)
            else:  # left by a broker that stopped while it completed or began a transaction
                await self._records.remove_group(group, one)
        return frozenset(partitions)

    async def _register_group(self, group: str, transactional_id: str, transaction: _OpenTransaction) -> None:
        """Registers the id with the group when the transaction contains offsets of it, so that `pending` finds them.

        Once per transaction is enough: the entry is not removed while the transaction has offsets of the group."""
        key = (group, transactional_id)
        if self._registered_groups.get(key) == transaction:
            return
        await self._records.add_group(group, transactional_id)
        self._registered_groups.pop(key, None)
        self._registered_groups[key] = transaction
        if len(self._registered_groups) > PRODUCERS_MAX:
            del self._registered_groups[next(iter(self._registered_groups))]

    # ── requests of administrators ───────────────────────────────────────────────────────────────────────────────────

    async def describe(self, transactional_id: str) -> Transaction | None:
        self.check_coordinator(transactional_id)
        await self._cache.load(transactional_id, confirmed=True)
        return self._cache.current(transactional_id)

    async def list_coordinated(self) -> list[CoordinatedTransaction]:
        """Lists the ids that this broker coordinates. Each id is in the list of exactly one broker."""
        names = [name for name in await self._records.names() if self.coordinates(name)]
        transactions = await gather_limited([self._read(name) for name in names], LOADS_AT_ONCE)
        return [transaction for transaction in transactions if transaction is not None]

    async def find_by_producer(self, producer_id: int) -> CoordinatedTransaction | None:
        """Returns the open or completing transaction of a producer id. It reads all records: for rare requests only."""
        names = await self._records.names()
        for one in await gather_limited([self._read(name) for name in names], LOADS_AT_ONCE):
            if one is not None and producer_id in _producers(one.record):
                return one
        return None

    async def abort(self, transactional_id: str, number: int) -> None:
        """Aborts the transaction and fences its producer. Returns when the decision is stored."""

        def decide(record: Transaction | None) -> Transaction:
            if record is None or not record.is_open or record.number != number:
                raise Rejected(f"transaction {number} of {transactional_id} is not open")
            return state_machine.fenced(record, self._clock.now_ms())

        await self._cache.change(transactional_id, decide)
        self.completer.begin(transactional_id)

    async def _read(self, transactional_id: str) -> CoordinatedTransaction | None:
        await self._cache.load(transactional_id)
        record = self._cache.current(transactional_id)
        return None if record is None else CoordinatedTransaction(transactional_id, record)

    async def _change(self, transactional_id: str, decide: Decide) -> StoredTransaction:
        """Changes the record, after a transaction that is being completed has completed."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + BUSY_MS / 1000
        while True:
            try:
                return await self._cache.change(transactional_id, decide)
            except Busy:
                if self.coordinates(transactional_id):
                    self.completer.begin(transactional_id)
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    raise
                await self._cache.wait(transactional_id, min(left_s, RETRY_MS / 1000))


def _producers(record: Transaction) -> set[int]:
    if record.is_open:
        return {record.producer.producer_id}
    return {record.marking.producer_id} if record.is_ending else set()
