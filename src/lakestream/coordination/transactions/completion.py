"""Completes decided transactions: writes the markers into all partitions, commits the offsets, updates the record.

Before: coordinator.py and expiration.py, after a decision is stored.  After: data/log, metadata/groups.py.

Each step may run twice, on two brokers, or begin on one broker and end on another: a marker whose number is not that of
the open transaction has no effect, an offset replaces only the version it was made for, and the record changes state
once.
"""

import asyncio
import contextlib
import logging
from typing import Final

from lakestream.aio.backoff import Backoff
from lakestream.aio.gather import gather_limited
from lakestream.clock import Clock
from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.record_cache import TransactionRecordCache
from lakestream.coordination.transactions.state_machine import CLASSIC
from lakestream.data.log.log import Log
from lakestream.errors import Conflict, Fenced, LakestreamError, Missing
from lakestream.metadata.transactions import NamedTransaction, StoredTransaction, Transaction, Transactions
from lakestream.model import PartitionId
from lakestream.records.batch import RecordBatch, control_batch

log = logging.getLogger(__name__)

MARKERS_AT_ONCE: Final = 256
RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 5.0
CLASSIC_DELAY_MS: Final = 200
"""A client of the classic protocol begins its next transaction through this broker, and that write of the record also
stores that the last transaction is complete. Only if none begins for so long is the completion written separately."""
CLOSE_S_MAX: Final = 5.0
COORDINATOR_EPOCH: Final = 0


class TransactionCompleter:
    def __init__(self, cache: TransactionRecordCache, records: Transactions, log: Log, clock: Clock) -> None:
        self._cache = cache
        self._records = records
        self._log = log
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.committed = 0
        self.aborted = 0

    def __len__(self) -> int:
        """Returns the number of transactions that are being completed."""
        return len(self._tasks)

    def begin(self, transactional_id: str, *, just_decided: bool = False) -> None:
        """Completes the transaction in a task. `just_decided`: by this broker, so no marker can be written yet."""
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        if transactional_id in self._tasks:
            self._again.add(transactional_id)  # the task may have read the record before the decision
            return
        if self._closed:
            return
        work = self._run(transactional_id, just_decided)
        task = asyncio.get_running_loop().create_task(work, name="transactions.completion")
        self._tasks[transactional_id] = task
        task.add_done_callback(lambda _: self._done(transactional_id))

    def _done(self, transactional_id: str) -> None:
        del self._tasks[transactional_id]
        if transactional_id in self._again:
            self._again.discard(transactional_id)
            self.begin(transactional_id)

    async def close(self) -> None:
        """Waits for a few seconds. Another broker completes the rest."""
        for transactional_id in list(self._timers):
            self.begin(transactional_id)
        self._closed = True
        tasks = list(self._tasks.values())
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=CLOSE_S_MAX)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _run(self, transactional_id: str, just_decided: bool) -> None:
        backoff = Backoff(RETRY_S_MIN, RETRY_S_MAX)
        stored = self._cache.cached(transactional_id)
        while True:
            try:
                stored = stored or await self._cache.load(transactional_id)
                if stored is not None and stored.record.is_ending:
                    await self._complete(transactional_id, stored, just_decided)
                return
            except Conflict:
                stored = None  # another broker completed it, or the next transaction has begun
                continue
            except LakestreamError as error:
                log.warning("transactions.completion_failed id=%s error=%s", transactional_id, error)
            except Exception:
                log.exception("transactions.completion_failed id=%s", transactional_id)
            stored, just_decided = None, False
            if self._closed:
                return
            await asyncio.sleep(backoff.failed())

    async def _complete(self, transactional_id: str, stored: StoredTransaction, just_decided: bool) -> None:
        record = stored.record
        was_completed = self._cache.is_completed(transactional_id, stored)
        # Read while the record is that of this transaction: after the record is stored as completed, entries with these
        # versions are not those of the next transaction.
        entries = await gather_limited(
            [self._records.group_entry(group, transactional_id) for group in record.offsets], MARKERS_AT_ONCE
        )
        if not was_completed:
            writes = [self._write_marker(one, record, just_decided) for one in record.partitions]
            await gather_limited(writes, MARKERS_AT_ONCE)
            if record.commits and record.offsets:
                await self._records.commit_offsets(record)
            self._cache.mark_completed(transactional_id, stored)
            self.committed += record.commits
            self.aborted += not record.commits
        if record.protocol == CLASSIC and not record.offsets and not was_completed and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[transactional_id] = loop.call_later(CLASSIC_DELAY_MS / 1000, self.begin, transactional_id)
            return
        await self._cache.save(transactional_id, state_machine.completed(record, self._clock.now_ms()), stored)
        await gather_limited(
            [
                self._remove_entry(group, entry)
                for group, entry in zip(record.offsets, entries, strict=True)
                if entry is not None
            ],
            MARKERS_AT_ONCE,
        )

    async def _remove_entry(self, group: str, entry: NamedTransaction) -> None:
        with contextlib.suppress(LakestreamError):  # then the next reader of the group's offsets removes it
            await self._records.remove_group(group, entry)

    async def _write_marker(self, partition: PartitionId, record: Transaction, just_decided: bool) -> None:
        producer_id, epoch = record.marking
        body = control_batch(producer_id, epoch, record.commits, self._clock.now_ms(), COORDINATOR_EPOCH)
        try:
            if not just_decided:
                producer = (await self._log.producers(partition)).get(producer_id)
                if producer is not None and producer.transaction_ended >= record.number:
                    return  # the partition has its marker
            await self._log.append(partition, RecordBatch.parse(body), record.number)
        except Missing:
            return  # the topic was deleted
        except Fenced:
            return  # a newer producer writes to this partition: the transaction has ended here
