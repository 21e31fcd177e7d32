"""What this broker knows of transactional ids, and the one way to change them.

Before: coordinator.py, ending.py, patrol.py.  After: metadata/transactions.py.

A record from memory may be old. That costs a try and never more: what is changed is put at the version that is known,
and whoever is refused, or told that nothing is left to do, is told so from a record that was read for certain.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from lakestream.clock import Clock
from lakestream.coordination.transactions import machine
from lakestream.errors import Conflict, Fenced, Rejected, Unavailable, Uncertain
from lakestream.metadata.transactions import Known, Transaction, Transactions

KNOWN_MAX: Final = 20_000
TRIES_MAX: Final = 100

Decide: TypeAlias = Callable[[Transaction | None], Transaction]
"""From a record to the next one. The same one: nothing is to be stored. May be called again on a newer record."""


class Shelf:
    def __init__(self, records: Transactions, clock: Clock) -> None:
        self._records = records
        self._clock = clock
        self._known: dict[str, Known] = {}  # least recently read or written first
        self._marked: dict[str, int] = {}
        self._waiting: dict[str, dict[asyncio.Event, None]] = {}

    def known(self, transactional_id: str) -> Known | None:
        """From memory: it may be old."""
        return self._known.get(transactional_id)

    async def load(self, transactional_id: str, *, confirmed: bool = False) -> Known | None:
        known = await self._records.load(transactional_id, confirmed=confirmed)
        self._remember(transactional_id, known)
        return known

    async def change(self, transactional_id: str, decide: Decide) -> Known:
        """Refusals of `decide` are raised. Unavailable: it is not done, or it cannot be known; try again."""
        known = self._known.get(transactional_id) or await self.load(transactional_id)
        certain = False
        for _ in range(TRIES_MAX):
            seen = self._seen(transactional_id, known)
            try:
                record = decide(seen)
            except (Fenced, Rejected, machine.Busy):
                if certain:
                    raise
                record = None
            if known is not None and record is seen and record is not None and certain:
                return Known(record, known.version)
            if record is None or record is seen:
                known, certain = await self.load(transactional_id, confirmed=True), True
                continue
            try:
                return await self.save(transactional_id, record, known)
            except Conflict:
                known, certain = await self.load(transactional_id), False
            except Uncertain:
                known, certain = await self.load(transactional_id, confirmed=True), True
        raise Unavailable(f"transactional id {transactional_id} is changed all the time by others; try again")

    async def save(self, transactional_id: str, record: Transaction, known: Known | None) -> Known:
        saved = await self._records.save(transactional_id, record, known)
        self._remember(transactional_id, saved)
        return saved

    async def remove(self, transactional_id: str, known: Known) -> None:
        await self._records.remove(transactional_id, known)
        self._remember(transactional_id, None)

    # ── transactions that have ended, and only this broker knows ─────────────────────────────────────────────────────

    def mark(self, transactional_id: str, known: Known) -> None:
        """All logs have the markers of this record, and groups their offsets. From here on it is as if that were
        stored: the next change says it along with its own."""
        self._marked[transactional_id] = known.version
        self.stir([transactional_id])

    def is_marked(self, transactional_id: str, known: Known) -> bool:
        return self._marked.get(transactional_id) == known.version

    def _seen(self, transactional_id: str, known: Known | None) -> Transaction | None:
        if known is None or not self.is_marked(transactional_id, known):
            return None if known is None else known.record
        return machine.ended(known.record, self._clock.now_ms())

    def seen(self, transactional_id: str) -> Transaction | None:
        """From memory."""
        return self._seen(transactional_id, self._known.get(transactional_id))

    # ── news ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def stir(self, transactional_ids: Iterable[str]) -> None:
        """These may have changed."""
        for transactional_id in transactional_ids:
            for event in self._waiting.get(transactional_id, ()):
                event.set()

    async def wait(self, transactional_id: str, timeout_s: float) -> None:
        """Until it may have changed; the news of that may get lost."""
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

    def _remember(self, transactional_id: str, known: Known | None) -> None:
        before = self._known.pop(transactional_id, None)
        if known is None or self._marked.get(transactional_id) != known.version:
            self._marked.pop(transactional_id, None)
        if known is not None:
            self._known[transactional_id] = known
        if before is None and len(self._known) > KNOWN_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._marked.pop(oldest, None)
