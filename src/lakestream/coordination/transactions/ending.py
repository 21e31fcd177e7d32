"""Ends what was decided: a marker into every log of the transaction, the groups' offsets, and the record says so.

Before: coordinator.py and patrol.py, after a decision is stored.  After: data/log, metadata/groups.py.

Everything here may be done twice, by two brokers, or begun by one and ended by another: a marker whose number is not
that of the open transaction has no effect, an offset replaces only the one that it was meant for, and the record moves
on once.
"""

import asyncio
import logging
from typing import Final

from lakestream.batch import RecordBatch, control_batch
from lakestream.clock import Clock
from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.machine import CLASSIC
from lakestream.coordination.transactions.shelf import Shelf
from lakestream.data.log.log import Log
from lakestream.errors import Conflict, Fenced, LakestreamError, Missing
from lakestream.metadata.transactions import Known, Transaction, Transactions
from lakestream.model import PartitionId
from lakestream.storage.together import together

log = logging.getLogger(__name__)

MARKERS_AT_ONCE: Final = 256
RETRY_MS: Final = 100
RETRY_MS_MAX: Final = 5_000
LATER_MS: Final = 200
"""A client of the older protocol asks this broker when it begins its next transaction, and what is stored then says
that the last one has ended. Only if it does not come so soon is that stored by itself."""
CLOSE_S_MAX: Final = 5.0
COORDINATOR_EPOCH: Final = 0


class Endings:
    def __init__(self, shelf: Shelf, records: Transactions, log_of_all: Log, clock: Clock) -> None:
        self._shelf = shelf
        self._records = records
        self._log = log_of_all
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.committed = 0
        self.aborted = 0

    def __len__(self) -> int:
        """Under way."""
        return len(self._tasks)

    def begin(self, transactional_id: str, *, decided: bool = False) -> None:
        """If it is not under way here. `decided`: just now, by this broker, so nobody can have begun with it."""
        timer = self._timers.pop(transactional_id, None)
        if timer is not None:
            timer.cancel()
        if transactional_id in self._tasks:
            self._again.add(transactional_id)  # it may have read the record before
            return
        if self._closed:
            return
        work = self._run(transactional_id, decided)
        task = asyncio.get_running_loop().create_task(work, name="transactions.ending")
        self._tasks[transactional_id] = task
        task.add_done_callback(lambda _: self._done(transactional_id))

    def _done(self, transactional_id: str) -> None:
        del self._tasks[transactional_id]
        if transactional_id in self._again:
            self._again.discard(transactional_id)
            self.begin(transactional_id)

    async def close(self) -> None:
        """What is not done in a while another broker will do."""
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

    async def _run(self, transactional_id: str, decided: bool) -> None:
        pause_ms = RETRY_MS
        known = self._shelf.known(transactional_id)
        while True:
            try:
                known = known or await self._shelf.load(transactional_id)
                if known is not None and known.record.is_ending:
                    await self._end(transactional_id, known, decided)
                return
            except Conflict:
                known = None  # somebody else ended it, or has begun the next one
                continue
            except LakestreamError as error:
                log.warning("transactions.not_ended id=%s error=%s", transactional_id, error)
            except Exception:
                log.exception("transactions.not_ended id=%s", transactional_id)
            known, decided = None, False
            if self._closed:
                return
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RETRY_MS_MAX)

    async def _end(self, transactional_id: str, known: Known, decided: bool) -> None:
        record = known.record
        is_known = self._shelf.is_marked(transactional_id, known)
        if not is_known:
            await together([self._mark(one, record, decided) for one in record.partitions], MARKERS_AT_ONCE)
            if record.commits and record.offsets:
                await self._records.commit_offsets(record)
            self._shelf.mark(transactional_id, known)
            self.committed += record.commits
            self.aborted += not record.commits
        if record.protocol == CLASSIC and not record.offsets and not is_known and not self._closed:
            loop = asyncio.get_running_loop()
            self._timers[transactional_id] = loop.call_later(LATER_MS / 1000, self.begin, transactional_id)
            return
        await self._shelf.save(transactional_id, machine.ended(record, self._clock.now_ms()), known)

    async def _mark(self, partition: PartitionId, record: Transaction, decided: bool) -> None:
        producer_id, epoch = record.marking
        body = control_batch(producer_id, epoch, record.commits, self._clock.now_ms(), COORDINATOR_EPOCH)
        try:
            if not decided:
                producer = (await self._log.producers(partition)).get(producer_id)
                if producer is not None and producer.transaction_ended >= record.number:
                    return  # it has its marker
            await self._log.append(partition, RecordBatch.parse(body), record.number)
        except Missing:
            return  # its topic was deleted
        except Fenced:
            return  # a newer producer writes there: the transaction is over in this log
