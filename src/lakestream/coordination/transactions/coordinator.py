"""Transactions as this broker serves them: as the coordinator of some ids, and as one that writes batches of any.

Before: protocol/kafka/handlers.  After: machine.py decides, shelf.py stores, ending.py does it, patrol.py looks after
what nobody ends.

No broker calls another one. The coordinator of an id is a live broker, chosen by rendezvous hash, so that its producer
has somebody to ask and time-outs are looked after once. It owns nothing: the record in the store, under
compare-and-set, is the truth, and two that both believe to be chosen do no harm.

A batch may come to any broker. Which transaction it belongs to is known there from memory, or read; before the first
one is appended to a log, the record is read once more (`transaction_of`), after the log was seen up to its end: only
while the record says that the transaction is open, with this log in it, can it begin there. Whoever ends it later knows
of this log, and its marker comes behind the batch; a marker that was first takes the batch's place in the log, and the
batch is refused.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from lakestream.clock import Clock
from lakestream.coordination import placement
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.looks import Looks
from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.ending import Endings
from lakestream.coordination.transactions.machine import CLASSIC, EPOCH_LAST, IMPLICIT, Busy
from lakestream.coordination.transactions.patrol import Patrol
from lakestream.coordination.transactions.shelf import Decide, Shelf
from lakestream.data.log.log import Log
from lakestream.errors import Fenced, LakestreamError, Rejected, Unavailable
from lakestream.metadata.brokers import Broker
from lakestream.metadata.claims import BatchInfo
from lakestream.metadata.cluster import Cluster
from lakestream.metadata.store import MetadataStore
from lakestream.metadata.transactions import Identity, Known, PendingOffset, Transaction, Transactions
from lakestream.model import PartitionId
from lakestream.storage.together import together

BUSY_MS: Final = 1_000
"""So long a request waits for the transaction before it to end, before the client is told to come again."""
LOOK_MS: Final = 50
"""Of a transaction that another broker ends there may be no news."""
PRODUCERS_MAX: Final = 100_000
LOADS_AT_ONCE: Final = 64
NO_ID: Final = -1


class NotCoordinator(Unavailable):
    """Find out who is."""


class NamedTransaction(NamedTuple):
    transactional_id: str
    record: Transaction


class TransactionFigures(NamedTuple):
    """Of the ids that this broker coordinates."""

    open: int
    overdue: int
    oldest_ms: int
    ending: int
    committed: int
    aborted: int
    timed_out: int


class TransactionCoordinator:
    def __init__(
        self,
        store: MetadataStore,
        log: Log,
        view: ClusterView,
        who: Callable[[], Broker],
        is_seen: Callable[[], bool],
        cluster: Cluster,
        clock: Clock,
    ) -> None:
        self._records = Transactions(store)
        self._shelf = Shelf(self._records, clock)
        self.endings = Endings(self._shelf, self._records, log, clock)
        self._view = view
        self._who = who
        self._is_seen = is_seen
        self._cluster = cluster
        self._clock = clock
        self.patrol = Patrol(self._shelf, self._records, self.endings, clock, self.is_mine, lambda: view.brokers)
        self._looks: Looks[Known | None] = Looks()
        self._pending_looks: Looks[frozenset[PartitionId]] = Looks()
        self._ids: dict[int, str] = {}  # by producer id; the least recent first
        self._noted: dict[tuple[str, str, int], None] = {}  # group, transactional id, producer id

    def start(self) -> None:
        self.patrol.start()

    async def close(self) -> None:
        await self.patrol.close()
        await self.endings.close()
        await self._looks.close()
        await self._pending_looks.close()

    def figures(self) -> TransactionFigures:
        endings = self.endings
        return TransactionFigures(
            *self.patrol.figures(), len(endings), endings.committed, endings.aborted, self.patrol.timed_out
        )

    # ── whose an id is ───────────────────────────────────────────────────────────────────────────────────────────────

    def coordinator_of(self, transactional_id: str) -> Broker:
        return placement.chosen(f"transaction:{transactional_id}", self._view.brokers or [self._who()])

    def is_mine(self, transactional_id: str) -> bool:
        return self._is_seen() and self.coordinator_of(transactional_id).node_id == self._who().node_id

    def check_mine(self, transactional_id: str) -> None:
        if not self.is_mine(transactional_id):
            raise NotCoordinator(f"this broker does not coordinate the transactional id {transactional_id}")

    # ── what producers ask their coordinator ─────────────────────────────────────────────────────────────────────────

    async def init(self, transactional_id: str, timeout_ms: int, expected: Identity | None) -> Identity:
        """Who writes under this id from now on. Busy: what was open is being aborted."""
        self.check_mine(transactional_id)
        await self._records.name(transactional_id)
        fresh_id = await self._cluster.producer_id()

        def decide(record: Transaction | None) -> Transaction:
            return machine.init(record, expected, timeout_ms, fresh_id, self._clock.now_ms())

        known = await self._changed(transactional_id, decide)
        if known.record.is_ending:
            self.endings.begin(transactional_id, decided=True)
            known = await self._changed(transactional_id, decide)
        if known.record.is_ending:
            raise Busy(f"transaction {known.record.number} of {transactional_id} is being aborted; try again")
        return known.record.producer

    async def add_partitions(self, transactional_id: str, who: Identity, partitions: Collection[PartitionId]) -> None:
        self.check_mine(transactional_id)
        await self._changed(
            transactional_id,
            lambda record: machine.add(record, who, partitions, CLASSIC, self._clock.now_ms()),
        )

    async def verify(self, transactional_id: str, who: Identity, partitions: Collection[PartitionId]) -> None:
        """Whether these logs are part of the open transaction."""
        self.check_mine(transactional_id)
        known = await self._shelf.load(transactional_id, confirmed=True)
        machine.number_for(None if known is None else known.record, who, partitions)

    async def add_group(self, transactional_id: str, who: Identity, group: str) -> None:
        self.check_mine(transactional_id)
        await self._note(group, transactional_id, who)
        await self._changed(
            transactional_id,
            lambda record: machine.add_group(record, who, group, CLASSIC, self._clock.now_ms()),
        )

    async def end(self, transactional_id: str, who: Identity, *, commit: bool, protocol: int) -> Identity:
        """Returns when it is decided, and with whom the client goes on. The logs hear of it a moment later."""
        self.check_mine(transactional_id)
        fresh_id = await self._cluster.producer_id() if who.epoch >= EPOCH_LAST else NO_ID
        open_at_first: int | None = None

        def decide(record: Transaction | None) -> Transaction:
            nonlocal open_at_first
            if record is not None and record.is_open:
                if open_at_first not in (None, record.number):  # another broker was asked too, and the client went on
                    raise Unavailable(f"{who} has begun another transaction meanwhile; try again")
                open_at_first = record.number
            return machine.end(
                record, who, commit=commit, protocol=protocol, fresh_id=fresh_id, now_ms=self._clock.now_ms()
            )

        known = await self._changed(transactional_id, decide)
        if known.record.is_ending:
            self.endings.begin(transactional_id, decided=True)
        return known.record.producer

    # ── what any broker does ─────────────────────────────────────────────────────────────────────────────────────────

    def number_known(self, transactional_id: str, who: Identity, partitions: Collection[PartitionId]) -> int | None:
        """The open transaction, from memory alone, if all these logs are part of it. The log asks again where it
        matters."""
        record = self._shelf.seen(transactional_id)
        try:
            number = None if record is None else machine.number_for(record, who, partitions)
        except (Fenced, Rejected):
            return None
        self._learn(who.producer_id, transactional_id)
        return number

    async def admit(
        self, transactional_id: str, who: Identity, partitions: Collection[PartitionId], protocol: int
    ) -> int:
        """The transaction that batches for these logs belong to. A client of the newer protocol leaves it to us to add
        logs, and to begin."""
        self._learn(who.producer_id, transactional_id)
        number = self.number_known(transactional_id, who, partitions)
        if number is not None:
            return number
        if protocol == CLASSIC:
            await self._shelf.load(transactional_id)
            number = self.number_known(transactional_id, who, partitions)
            if number is None:
                known = await self._shelf.load(transactional_id, confirmed=True)
                number = machine.number_for(None if known is None else known.record, who, partitions)
            return number
        known = await self._changed(
            transactional_id,
            lambda record: machine.add(record, who, partitions, IMPLICIT, self._clock.now_ms()),
        )
        return known.record.number

    async def transaction_of(self, partition: PartitionId, batch: BatchInfo) -> int | LakestreamError:
        """For the log: which transaction this batch belongs to, now."""
        transactional_id = self._ids.get(batch.producer_id)
        if transactional_id is None:
            raise Unavailable(f"producer {batch.producer_id} is not known here any longer; send the batch again")
        # Many logs may ask at once: they share a read that begins after they asked.
        known = await self._looks.look(transactional_id, lambda: self._shelf.load(transactional_id, confirmed=True))
        try:
            return machine.number_for(
                None if known is None else known.record, Identity(batch.producer_id, batch.epoch), [partition]
            )
        except (Fenced, Rejected) as refusal:
            return refusal

    def _learn(self, producer_id: int, transactional_id: str) -> None:
        self._ids.pop(producer_id, None)
        self._ids[producer_id] = transactional_id
        if len(self._ids) > PRODUCERS_MAX:
            del self._ids[next(iter(self._ids))]

    # ── offsets of groups ────────────────────────────────────────────────────────────────────────────────────────────

    async def hold_group(self, transactional_id: str, who: Identity, group: str, protocol: int) -> None:
        """The transaction is open, with the group in it. So the one before it has ended, and the group's committed
        offsets are as that one left them: whoever reads their versions now replaces the right ones."""
        record = self._shelf.seen(transactional_id)
        if record is not None and record.is_open and record.producer == who and group in record.groups:
            return
        await self._note(group, transactional_id, who)
        await self._changed(
            transactional_id,
            lambda record: machine.with_group(record, who, group, protocol, self._clock.now_ms()),
        )

    async def put_offsets(
        self, transactional_id: str, who: Identity, group: str, offsets: Sequence[PendingOffset], protocol: int
    ) -> None:
        """They are committed if the transaction is. Asked of the group's coordinator, after `hold_group`."""
        await self._changed(
            transactional_id,
            lambda record: machine.put_offsets(record, who, group, offsets, protocol, self._clock.now_ms()),
        )

    async def pending(self, group: str) -> frozenset[PartitionId]:
        """Partitions whose offset may change by itself: a transaction that holds another one has not ended.

        All ids that ever were in the group are read for it. After a rebalance all members ask at once: they share a
        look that begins after they asked."""
        return await self._pending_looks.look(group, lambda: self._look_for_pending(group))

    async def _look_for_pending(self, group: str) -> frozenset[PartitionId]:
        found: set[PartitionId] = set()
        noted = await self._records.of_group(group)
        loads = [self._shelf.load(one.transactional_id, confirmed=True) for one in noted]
        for one, known in zip(noted, await together(loads, LOADS_AT_ONCE), strict=True):
            if known is None:
                await self._records.forget_group(group, one)
            else:
                found.update(offset.partition for offset in known.record.offsets.get(group, ()))
        return frozenset(found)

    async def _note(self, group: str, transactional_id: str, who: Identity) -> None:
        """Before offsets of the group are part of a transaction, so that whoever reads them finds it. Once is enough:
        it is not taken away while there is a record."""
        key = (group, transactional_id, who.producer_id)
        if key in self._noted:
            return
        await self._records.note_group(group, transactional_id)
        self._noted[key] = None
        if len(self._noted) > PRODUCERS_MAX:
            del self._noted[next(iter(self._noted))]

    # ── what administrators ask ──────────────────────────────────────────────────────────────────────────────────────

    async def describe(self, transactional_id: str) -> Transaction | None:
        self.check_mine(transactional_id)
        await self._shelf.load(transactional_id, confirmed=True)
        return self._shelf.seen(transactional_id)

    async def mine(self) -> list[NamedTransaction]:
        """Those that this broker coordinates: all brokers together have all of them, each once."""
        names = [name for name in await self._records.names() if self.is_mine(name)]
        found = await together([self._read(name) for name in names], LOADS_AT_ONCE)
        return [one for one in found if one is not None]

    async def writing(self, producer_id: int) -> NamedTransaction | None:
        """The transaction that is open or ending under this producer id, whoever coordinates it. For what is rare."""
        names = await self._records.names()
        for one in await together([self._read(name) for name in names], LOADS_AT_ONCE):
            if one is not None and producer_id in _producers(one.record):
                return one
        return None

    async def abort(self, transactional_id: str, number: int) -> None:
        """Over its producer's head, unless it has ended. Returns when no log has it open."""

        def decide(record: Transaction | None) -> Transaction:
            if record is None or not record.is_open or record.number != number:
                raise Rejected(f"transaction {number} of {transactional_id} is not open")
            return machine.fenced(record, self._clock.now_ms())

        await self._shelf.change(transactional_id, decide)
        self.endings.begin(transactional_id)

    async def _read(self, transactional_id: str) -> NamedTransaction | None:
        await self._shelf.load(transactional_id)
        record = self._shelf.seen(transactional_id)
        return None if record is None else NamedTransaction(transactional_id, record)

    # ── change, after what is just ending has ended ──────────────────────────────────────────────────────────────────

    async def _changed(self, transactional_id: str, decide: Decide) -> Known:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + BUSY_MS / 1000
        while True:
            try:
                return await self._shelf.change(transactional_id, decide)
            except Busy:
                if self.is_mine(transactional_id):
                    self.endings.begin(transactional_id)
                left_s = deadline_s - loop.time()
                if left_s <= 0:
                    raise
                await self._shelf.wait(transactional_id, min(left_s, LOOK_MS / 1000))


def _producers(record: Transaction) -> set[int]:
    if record.is_open:
        return {record.producer.producer_id}
    return {record.marking.producer_id} if record.is_ending else set()
