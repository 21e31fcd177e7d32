"""The pipeline's main loop: a round every few seconds, or at once where there is more than a round may take.

Before: cli/pipeline.py, which has started Spark.  After: rounds.py.  It sleeps while no log grows, and is woken by who
waits for a table (asked.py). What it did is one line per round, and a record in the metadata store, where brokers read
it for /metrics and `doctor`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from lakestream.clock import Clock
from lakestream.errors import LakestreamError
from lakestream.metadata.reports import PipelineReport, Reports, TopicReport
from lakestream.pipeline.asked import AskedTopics
from lakestream.pipeline.backlog import ChangedLogs
from lakestream.pipeline.delta.mirror import DeltaMirror, looked_once
from lakestream.pipeline.maintenance.maintain import Maintenance
from lakestream.pipeline.rounds import Rounds
from lakestream.pipeline.standing import Round, Standing

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
REPORT_EVERY_MS: Final = 5_000
MAINTENANCE_EVERY_MS: Final = 20_000
IDLE_LOOK_MS: Final = 60_000
"""Also without news: a topic that is stuck may have been mended, something may be left to sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    interval_ms: int = 5_000
    once: bool = False
    """Move what is there now, and end."""


class Driver:
    def __init__(
        self,
        rounds: Rounds,
        changed: ChangedLogs,
        asked: AskedTopics,
        reports: Reports,
        clock: Clock,
        options: PipelineOptions,
        maintenance: Maintenance | None = None,
        name: str = "pipeline",
        mirror: DeltaMirror | None = None,
    ) -> None:
        """`name`: of its own among all that run, so that their reports are told apart."""
        self._maintenance = maintenance
        self._mirror = mirror
        self._rounds = rounds
        self._changed = changed
        self._asked = asked
        self._reports = reports
        self._clock = clock
        self._options = options
        self._name = name
        self._reported_ms = 0
        self._failing = ""
        self.on_round: Callable[[Round], None] = _say
        """Told what each round did."""

    @property
    def under_way(self) -> tuple[int, int]:
        """Offsets that the round under way moves just now, and all that it found."""
        return sum(move.end - move.start for move in self._rounds.under_way), self._rounds.waiting

    async def run_once(self) -> Round:
        """Until nothing is left of what is there now; what all rounds did together."""
        total = Round()
        while True:
            done = await self._rounds.run()
            self.on_round(done)
            _add(total, done)
            if not done.left:
                await looked_once(self._mirror)
                await self._report(force=True)
                return total

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        beside = [
            loop.create_task(self._changed.follow(), name="pipeline.feed"),
            loop.create_task(self._asked.follow(), name="pipeline.asked"),
        ]
        if self._maintenance is not None:
            beside.append(loop.create_task(self._maintain(self._maintenance), name="pipeline.maintenance"))
        if self._mirror is not None:
            beside.append(loop.create_task(self._mirror.run(), name="pipeline.delta"))
        try:
            while True:
                begun_s = loop.time()
                left = await self._round()
                if not left:
                    await self._wait(begun_s)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    async def _maintain(self, maintenance: Maintenance) -> None:
        """Beside the rounds, which do not wait for it."""
        while True:
            await asyncio.sleep(MAINTENANCE_EVERY_MS / 1000)
            try:
                await maintenance.maintain()
            except LakestreamError as error:
                log.warning("pipeline.not_maintained error=%s", error)
            except Exception:
                log.exception("pipeline.not_maintained")  # a bug must not end all maintenance

    async def _round(self) -> bool:
        try:
            done = await self._rounds.run(self._asked.take())
        except LakestreamError as error:
            log.warning("pipeline.round_failed error=%s", error)
            self._failing = str(error)
            await self._report(force=False)
            await asyncio.sleep(RETRY_MS / 1000)
            return False
        self._failing = ""
        self.on_round(done)
        if self._mirror is not None:
            self._mirror.note(done.committed)
        await self._report(force=bool(done.moves))
        return done.left

    async def _wait(self, begun_s: float) -> None:
        """For the next tick, and for something to do; whoever waits for a table is not kept waiting."""
        interval_s = self._options.interval_ms / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(begun_s + interval_s):
                await self._asked.news.wait()
                return
        if self._rounds.is_busy:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_LOOK_MS / 1000):
                await self._changed.news.wait()

    async def _report(self, *, force: bool) -> None:
        now_ms = self._clock.now_ms()
        if not force and now_ms - self._reported_ms < REPORT_EVERY_MS:
            return
        is_first, self._reported_ms = not self._reported_ms, now_ms
        topics = {name: _reported(standing, now_ms) for name, standing in self._rounds.named_standings().items()}
        for one in () if self._mirror is None else self._mirror.standings.values():
            said = topics.get(one.name, TopicReport())
            topics[one.name] = replace(said, delta=True, delta_behind=one.behind, delta_behind_ms=one.behind_ms)
        try:
            if is_first:
                await self._reports.remove_old(now_ms)
            await self._reports.put(PipelineReport(now_ms, topics, self._failing, self._name))
        except LakestreamError as error:
            log.warning("pipeline.not_reported error=%s", error)


def _reported(standing: Standing, now_ms: int) -> TopicReport:
    return TopicReport(
        lag_records=standing.lag_records,
        lag_ms=max(0, now_ms - standing.oldest_ms) if standing.oldest_ms else 0,
        stuck=standing.stuck,
        trouble=standing.trouble,
        trouble_ms=standing.trouble_ms if standing.trouble else 0,
        moved_ms=standing.moved_ms,
        files=standing.files,
        records=standing.records,
        bytes=standing.bytes,
        typed=standing.typed,
        raw=standing.raw,
        misfit=standing.misfit,
        unmet=standing.unmet,
    )


def _say(done: Round) -> None:
    if not done.moves:
        return
    steps = " ".join(f"{step}={seconds:.2f}" for step, seconds in done.seconds.items() if seconds >= 0.005)
    log.info(
        "pipeline.moved ranges=%d records=%d bytes=%d files=%d tables=%d seconds=%.2f (%s) lag=%d lag_seconds=%.1f",
        done.moves,
        done.records,
        done.bytes,
        done.files,
        done.tables,
        sum(done.seconds.values()),
        steps,
        done.lag_records,
        done.lag_ms / 1000,
    )


def _add(total: Round, done: Round) -> None:
    total.moves += done.moves
    total.records += done.records
    total.bytes += done.bytes
    total.files += done.files
    total.tables = max(total.tables, done.tables)
    total.stuck = done.stuck
    total.lag_records, total.lag_ms = done.lag_records, done.lag_ms
    for step, seconds in done.seconds.items():
        total.seconds[step] = total.seconds.get(step, 0.0) + seconds
