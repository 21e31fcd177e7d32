"""Cache of transaction records, and the only way to change them.

Before: coordinator.py, completion.py, expiration.py.  After: metadata/transactions.py.

A cached record may be stale. This costs at most a retry: a change is written at the version of the cached
record, and before a request is rejected, or answered without a write, the record is read with a confirmed read.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from lakestream.clock import Clock
from lakestream.coordination.transactions import state_machine
from lakestream.errors import Conflict, Fenced, Rejected, Unavailable, Uncertain
from lakestream.metadata.transactions import StoredTransaction, Transaction, Transactions

CACHED_MAX: Final = 20_000
TRIES_MAX: Final = 100

Decide: TypeAlias = Callable[[Transaction | None], Transaction]
"""Returns the next record, or the same object if there is nothing to store. May be called again with a newer record."""


class TransactionRecordCache:
    def __init__(self, records: Transactions, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._cached: dict[str, StoredTransaction] = {}  # least recently read or written first
        self._completed: dict[str, int] = {}
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}

    def cached(self, transactional_id: str) -> StoredTransaction | None:
        """Returns the cached record, which may be stale."""
        return self._cached.get(transactional_id)

    async def load(self, transactional_id: str, *, confirmed: bool = False) -> StoredTransaction | None:
        stored = await self._records.load(transactional_id, confirmed=confirmed)
        self._put(transactional_id, stored)
        return stored

    async def change(self, transactional_id: str, decide: Decide) -> StoredTransaction:
        """Stores the decision. Raises the errors of `decide`, or Unavailable if it failed or may have failed."""
        stored = self._cached.get(transactional_id) or await self.load(transactional_id)
        confirmed = False
        for _ in range(TRIES_MAX):
            before = self._effective(transactional_id, stored)
            try:
                record = decide(before)
            except (Fenced, Rejected, state_machine.Busy):
                if confirmed:
                    raise
                record = None
            if stored is not None and record is before and record is not None and confirmed:
                return StoredTransaction(record, stored.version)
            if record is None or record is before:
                stored, confirmed = await self.load(transactional_id, confirmed=True), True
                continue
            try:
                return await self.save(transactional_id, record, stored)
            except Conflict:
                stored, confirmed = await self.load(transactional_id), False
            except Uncertain:
                stored, confirmed = await self.load(transactional_id, confirmed=True), True
        raise Unavailable(f"transactional id {transactional_id}: changed during {TRIES_MAX} write attempts: retry")

    async def save(
        self, transactional_id: str, record: Transaction, stored: StoredTransaction | None
    ) -> StoredTransaction:
        saved = await self._records.save(transactional_id, record, stored)
        self._put(transactional_id, saved)
        return saved

    async def remove(self, transactional_id: str, stored: StoredTransaction) -> None:
        await self._records.remove(transactional_id, stored)
        self._put(transactional_id, None)

    # ── completed transactions whose completion is not stored yet ────────────────────────────────────────────────────

    def mark_completed(self, transactional_id: str, stored: StoredTransaction) -> None:
        """Notes that all markers are written and all offsets committed.

        This broker handles the record as completed from here on. The next change of it stores that, too."""
        self._completed[transactional_id] = stored.version
        self.notify([transactional_id])

    def is_completed(self, transactional_id: str, stored: StoredTransaction) -> bool:
        return self._completed.get(transactional_id) == stored.version

    def _effective(self, transactional_id: str, stored: StoredTransaction | None) -> Transaction | None:
        if stored is None or not self.is_completed(transactional_id, stored):
            return None if stored is None else stored.record
        return state_machine.completed(stored.record, self._clock.now_ms())

    def current(self, transactional_id: str) -> Transaction | None:
        """Returns the cached record, completed if this broker has completed it."""
        return self._effective(transactional_id, self._cached.get(transactional_id))

    # ── notifications ────────────────────────────────────────────────────────────────────────────────────────────────

    def notify(self, transactional_ids: Iterable[str]) -> None:
        """Wakes the requests that wait for a change of these records."""
        for transactional_id in transactional_ids:
            for event in self._waiting.get(transactional_id, ()):
                event.set()

    async def wait(self, transactional_id: str, timeout_s: float) -> None:
        """Waits until the record may have changed. The notification of a change may be lost."""
        event = asyncio.Event()
        self._waiting.setdefault(transactional_id, {})[event] = None
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            waiting = self._waiting[transactional_id]
            del waiting[event]
            if not waiting:
                del self._waiting[transactional_id]

    def _put(self, transactional_id: str, stored: StoredTransaction | None) -> None:
        before = self._cached.pop(transactional_id, None)
        if stored is None or self._completed.get(transactional_id) != stored.version:
            self._completed.pop(transactional_id, None)
        if stored is not None:
            self._cached[transactional_id] = stored
        if before is None and len(self._cached) > CACHED_MAX:
            oldest = next(iter(self._cached))
            del self._cached[oldest]
            self._completed.pop(oldest, None)
