"""Aborts transactions that time out, resumes completions that another broker began, and expires unused ids.

Before: coordinator.py. Each broker checks the ids that it coordinates: ids whose records change, which the watch of the
store reports, and all ids periodically and whenever the live brokers change.

A name without a record was left by a broker that died between the two writes. It is deleted after it was seen unchanged
for an hour: then no client is about to use it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from lakestream.aio.background import BackgroundTasks, follow, run_every
from lakestream.aio.gather import gather_limited
from lakestream.clock import Clock
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.transactions import state_machine
from lakestream.coordination.transactions.completion import TransactionCompleter
from lakestream.coordination.transactions.id_limits import TransactionalIdLimits
from lakestream.coordination.transactions.record_cache import TransactionRecordCache
from lakestream.errors import Conflict, LakestreamError, Rejected
from lakestream.metadata import keys
from lakestream.metadata.store import Changes
from lakestream.metadata.transactions import StoredTransaction, Transaction, Transactions

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
FULL_SCAN_S: Final = 60.0
"""How often all ids are checked, even without a change notification."""
LOADS_AT_ONCE: Final = 32
WATCH_RETRY_S: Final = 0.5
LEFTOVER_MS: Final = 60 * 60 * 1000


class _OpenTransaction(NamedTuple):
    started_ms: int
    due_ms: int


class _LeftoverName(NamedTuple):
    version: int
    since_ms: int


class OpenFigures(NamedTuple):
    open: int
    overdue: int
    oldest_ms: int
    """How long the oldest transaction has been open; 0 if there is none."""


class TransactionExpirer:
    def __init__(
        self,
        cache: TransactionRecordCache,
        records: Transactions,
        completer: TransactionCompleter,
        clock: Clock,
        coordinates: Callable[[str], bool],
        metadata_cache: MetadataCache,
        id_limits: TransactionalIdLimits,
    ) -> None:
        self._cache = cache
        self._records = records
        self._completer = completer
        self._clock = clock
        self._coordinates = coordinates
        self._metadata_cache = metadata_cache
        self._id_limits = id_limits
        self._changed: set[str] = set()
        self._unconfirmed: set[str] = set()
        """Ids whose records are read from the store, even if they are cached."""
        self.timed_out = 0
        self._open: dict[str, _OpenTransaction] = {}
        self._leftovers: dict[str, _LeftoverName] = {}
        self._full_scan_at_s = 0.0
        self._scanned_brokers: object = None
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        watch = follow(self._records.watch, self._note_changes, "transactions.watch_failed", WATCH_RETRY_S)
        self._tasks.start(watch, "transactions.watch")
        self._tasks.start(run_every(TICK_S, self.run_once, "transactions.scan_failed"), "transactions.expiration")

    async def close(self) -> None:
        await self._tasks.close()

    def figures(self) -> OpenFigures:
        """Returns the open transactions that this broker coordinates, as of the last run."""
        now_ms = self._clock.now_ms()
        overdue = sum(one.due_ms < now_ms for one in self._open.values())
        oldest_ms = max((now_ms - one.started_ms for one in self._open.values()), default=0)
        return OpenFigures(len(self._open), overdue, max(0, oldest_ms))

    async def _note_changes(self, changes: Changes) -> None:
        if changes.everything:
            self._full_scan_at_s = 0.0
        ids = [keys.transaction_of(path) for path in changes.paths]
        self._changed.update(ids)
        self._cache.notify(ids)

    async def run_once(self) -> None:
        now_s = asyncio.get_running_loop().time()
        brokers = self._metadata_cache.brokers
        names: dict[str, int] = {}
        if now_s >= self._full_scan_at_s or brokers != self._scanned_brokers:
            self._full_scan_at_s, self._scanned_brokers = now_s + FULL_SCAN_S, brokers
            try:
                names = {one.transactional_id: one.version for one in await self._records.versioned_names()}
            except LakestreamError:
                self._full_scan_at_s = 0.0
                raise
            self._unconfirmed.update(names)
            self._id_limits.counted(len(names), {one for one in names if self._coordinates(one)})
            self._open = {one: open_ for one, open_ in self._open.items() if self._coordinates(one)}
            self._leftovers = {one: name for one, name in self._leftovers.items() if names.get(one) == name.version}
        due = sorted(self._changed | self._unconfirmed)
        unconfirmed, self._changed, self._unconfirmed = self._unconfirmed, set(), set()
        try:
            checks = [self._check(one, one in unconfirmed, names.get(one)) for one in due if self._coordinates(one)]
            await gather_limited(checks, LOADS_AT_ONCE)
        except LakestreamError:
            self._unconfirmed.update(due)
            raise
        now_ms = self._clock.now_ms()
        for transactional_id in [one for one, open_ in self._open.items() if open_.due_ms < now_ms]:
            if self._coordinates(transactional_id):
                await self._abort(transactional_id)
            else:
                del self._open[transactional_id]

    async def _check(self, transactional_id: str, unconfirmed: bool, name_version: int | None) -> None:
        """Checks one id. `name_version` is None unless the names were scanned in this run."""
        stored = self._cache.cached(transactional_id)
        if unconfirmed or stored is None or not stored.record.is_open:  # an open one is read when it is overdue
            stored = await self._cache.load(transactional_id)
        self._open.pop(transactional_id, None)
        if stored is None:
            self._id_limits.forget(transactional_id)
            await self._check_leftover(transactional_id, name_version)
            return
        self._id_limits.note(transactional_id, stored.record.client)
        if stored.record.is_open:
            started_ms = stored.record.started_ms
            self._open[transactional_id] = _OpenTransaction(started_ms, started_ms + stored.record.timeout_ms)
        elif stored.record.is_ending:
            self._completer.begin(transactional_id)
        elif state_machine.is_expired(stored.record, self._clock.now_ms()):
            await self._expire(transactional_id, stored)

    async def _abort(self, transactional_id: str) -> None:
        self._unconfirmed.add(transactional_id)
        with contextlib.suppress(Rejected):
            stored = await self._cache.change(transactional_id, self._timed_out)
            self.timed_out += 1
            log.warning("transactions.timed_out id=%s number=%d", transactional_id, stored.record.number)
            self._completer.begin(transactional_id)

    def _timed_out(self, record: Transaction | None) -> Transaction:
        now_ms = self._clock.now_ms()
        if record is None or not state_machine.is_overdue(record, now_ms):
            raise Rejected("the transaction has ended, or has not timed out")
        return state_machine.fenced(record, now_ms)

    async def _expire(self, transactional_id: str, stored: StoredTransaction) -> None:
        with contextlib.suppress(Conflict):  # a producer uses it again
            await self._cache.remove(transactional_id, stored)
            log.info("transactions.expired id=%s", transactional_id)

    async def _check_leftover(self, transactional_id: str, version: int | None) -> None:
        if version is None:
            return
        now_ms = self._clock.now_ms()
        name = self._leftovers.setdefault(transactional_id, _LeftoverName(version, now_ms))
        if now_ms - name.since_ms <= LEFTOVER_MS or await self._cache.load(transactional_id, confirmed=True):
            return
        del self._leftovers[transactional_id]
        with contextlib.suppress(Conflict):  # a producer begins to use it
            await self._records.remove_name(transactional_id, version)
