"""Looks for transactions that nobody ends: overdue ones, and ends that another broker began and did not finish. Forgets
ids that nobody uses.

Beside coordinator.py. Each broker looks after the ids that it coordinates: at those that change, as the change feed
tells, and at all of them now and then, and whenever a broker comes or goes.

A name without a record is left over from a broker that died between the two. It goes when it was seen so for an hour,
untouched all the time: nobody is just about to use it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from lakestream.clock import Clock
from lakestream.coordination.transactions import machine
from lakestream.coordination.transactions.ending import Endings
from lakestream.coordination.transactions.shelf import Shelf
from lakestream.errors import Conflict, LakestreamError, Rejected
from lakestream.metadata import keys
from lakestream.metadata.transactions import Known, Transaction, Transactions
from lakestream.storage.together import together

log = logging.getLogger(__name__)

TICK_MS: Final = 500
ALL_MS: Final = 60_000
"""Every id is looked at so often, whatever the change feed says."""
LOADS_AT_ONCE: Final = 32
FEED_RETRY_MS: Final = 500
LEFTOVER_MS: Final = 60 * 60 * 1000


class _Open(NamedTuple):
    started_ms: int
    due_ms: int


class _Leftover(NamedTuple):
    version: int
    """Of the name."""
    since_ms: int


class OpenFigures(NamedTuple):
    open: int
    overdue: int
    oldest_ms: int
    """How long it is open; 0: there is none."""


class Patrol:
    def __init__(
        self,
        shelf: Shelf,
        records: Transactions,
        endings: Endings,
        clock: Clock,
        is_mine: Callable[[str], bool],
        brokers: Callable[[], object],
    ) -> None:
        self._shelf = shelf
        self._records = records
        self._endings = endings
        self._clock = clock
        self._is_mine = is_mine
        self._brokers = brokers
        self._changed: set[str] = set()
        self._doubted: set[str] = set()
        """To be looked at in the store, whatever is in memory."""
        self.timed_out = 0
        self._open: dict[str, _Open] = {}
        self._leftovers: dict[str, _Leftover] = {}
        self._all_at_s = 0.0
        self._seen_brokers: object = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(), name="transactions.feed"),
            loop.create_task(self._run(), name="transactions.patrol"),
        ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def figures(self) -> OpenFigures:
        """Of open transactions that this broker coordinates, as of the last round."""
        now_ms = self._clock.now_ms()
        overdue = sum(one.due_ms < now_ms for one in self._open.values())
        oldest_ms = max((now_ms - one.started_ms for one in self._open.values()), default=0)
        return OpenFigures(len(self._open), overdue, max(0, oldest_ms))

    async def _follow(self) -> None:
        while True:
            try:
                async for changes in self._records.watch():
                    if changes.everything:
                        self._all_at_s = 0.0
                    ids = [keys.transaction_of(path) for path in changes.paths]
                    self._changed.update(ids)
                    self._shelf.stir(ids)
            except LakestreamError as error:
                log.warning("transactions.feed_broken error=%s", error)
            except Exception:
                log.exception("transactions.feed_broken")  # a bug must not end all news
            await asyncio.sleep(FEED_RETRY_MS / 1000)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            try:
                await self.round()
            except LakestreamError as error:
                log.warning("transactions.not_looked_after error=%s", error)
            except Exception:
                log.exception("transactions.not_looked_after")

    async def round(self) -> None:
        now_s = asyncio.get_running_loop().time()
        brokers = self._brokers()
        named: dict[str, int] = {}
        if now_s >= self._all_at_s or brokers != self._seen_brokers:
            self._all_at_s, self._seen_brokers = now_s + ALL_MS / 1000, brokers
            try:
                named = {one.transactional_id: one.version for one in await self._records.named()}
            except LakestreamError:
                self._all_at_s = 0.0
                raise
            self._doubted.update(named)
            self._open = {one: seen for one, seen in self._open.items() if self._is_mine(one)}
            self._leftovers = {one: seen for one, seen in self._leftovers.items() if named.get(one) == seen.version}
        some = sorted(self._changed | self._doubted)
        doubted, self._changed, self._doubted = self._doubted, set(), set()
        try:
            looks = [self._look(one, one in doubted, named.get(one)) for one in some if self._is_mine(one)]
            await together(looks, LOADS_AT_ONCE)
        except LakestreamError:
            self._doubted.update(some)
            raise
        now_ms = self._clock.now_ms()
        for transactional_id in [one for one, seen in self._open.items() if seen.due_ms < now_ms]:
            if self._is_mine(transactional_id):
                await self._abort(transactional_id)
            else:
                del self._open[transactional_id]

    async def _look(self, transactional_id: str, doubted: bool, named: int | None) -> None:
        """`named`: the version of its name, if it was looked for."""
        known = self._shelf.known(transactional_id)
        if doubted or known is None or not known.record.is_open:  # else it is looked at when it is overdue
            known = await self._shelf.load(transactional_id)
        self._open.pop(transactional_id, None)
        if known is None:
            await self._look_at_name(transactional_id, named)
            return
        if known.record.is_open:
            started_ms = known.record.started_ms
            self._open[transactional_id] = _Open(started_ms, started_ms + known.record.timeout_ms)
        elif known.record.is_ending:
            self._endings.begin(transactional_id)
        elif machine.is_forgotten(known.record, self._clock.now_ms()):
            await self._forget(transactional_id, known)

    async def _abort(self, transactional_id: str) -> None:
        self._doubted.add(transactional_id)
        with contextlib.suppress(Rejected):
            known = await self._shelf.change(transactional_id, self._timed_out)
            self.timed_out += 1
            log.warning("transactions.timed_out id=%s number=%d", transactional_id, known.record.number)
            self._endings.begin(transactional_id)

    def _timed_out(self, record: Transaction | None) -> Transaction:
        now_ms = self._clock.now_ms()
        if record is None or not machine.is_overdue(record, now_ms):
            raise Rejected("the transaction has ended, or has time left")
        return machine.fenced(record, now_ms)

    async def _forget(self, transactional_id: str, known: Known) -> None:
        with contextlib.suppress(Conflict):  # in use again
            await self._shelf.remove(transactional_id, known)
            log.info("transactions.forgotten id=%s", transactional_id)

    async def _look_at_name(self, transactional_id: str, version: int | None) -> None:
        if version is None:
            return
        now_ms = self._clock.now_ms()
        seen = self._leftovers.setdefault(transactional_id, _Leftover(version, now_ms))
        if now_ms - seen.since_ms <= LEFTOVER_MS or await self._shelf.load(transactional_id, confirmed=True):
            return
        del self._leftovers[transactional_id]
        with contextlib.suppress(Conflict):  # somebody begins with it
            await self._records.remove_name(transactional_id, version)
