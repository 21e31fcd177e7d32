"""Main loop of the pipeline: a micro-batch every few seconds, or immediately if the last one reached its size limit.

Before: cli/pipeline.py, which has started Spark.  After: micro_batch.py.  The driver sleeps while no log grows, and is
woken by refresh requests (refresh_requests.py). It logs one line per micro-batch, and writes its status to the metadata
store, where brokers read it for /metrics and `doctor`.
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
from lakestream.metadata.pipeline_status import PipelineReport, PipelineStatusStore, TopicReport
from lakestream.pipeline.delta.sync_task import DeltaSyncTask, sync_once
from lakestream.pipeline.maintenance.service import Maintenance
from lakestream.pipeline.micro_batch import MicroBatches
from lakestream.pipeline.refresh_requests import RefreshRequestWatcher
from lakestream.pipeline.topic_status import MicroBatchResult, TopicStatus

log = logging.getLogger(__name__)

RETRY_MS: Final = 1_000
REPORT_EVERY_MS: Final = 5_000
MAINTENANCE_EVERY_MS: Final = 20_000
IDLE_INTERVAL_MS: Final = 60_000
"""Also without changes: a stalled topic may have been repaired, and WAL objects may be left to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions:
    interval_ms: int = 5_000
    once: bool = False
    """Move all records that exist now, then exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentTasks:
    """Tasks that run concurrently with the micro-batches, which do not wait for them."""

    maintenance: Maintenance | None = None
    delta_sync: DeltaSyncTask | None = None


class Driver:
    def __init__(
        self,
        micro_batches: MicroBatches,
        requests: RefreshRequestWatcher,
        reports: PipelineStatusStore,
        clock: Clock,
        options: PipelineOptions,
        background: ConcurrentTasks | None = None,
        *,
        name: str = "pipeline",
        on_micro_batch: Callable[[MicroBatchResult], None] | None = None,
    ) -> None:
        """`name`: different for each driver; the status of each is stored under its name.

        `on_micro_batch`: called with the result of each micro-batch; without it, the result is logged.
        """
        self._background = background or ConcurrentTasks()
        self._micro_batches = micro_batches
        self._changed = micro_batches.changed
        self._requests = requests
        self._reports = reports
        self._clock = clock
        self._options = options
        self._name = name
        self._on_micro_batch = on_micro_batch or _log_result
        self._reported_ms = 0
        self._error = ""

    async def run_once(self) -> MicroBatchResult:
        """Runs micro-batches until nothing is left to move now; returns their sum."""
        total = MicroBatchResult()
        while True:
            done = await self._micro_batches.run()
            self._on_micro_batch(done)
            total.add(done)
            if not done.left:
                await sync_once(self._background.delta_sync)
                await self._report(force=True)
                return total

    async def run(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._changed.follow(), name="pipeline.watch"),
            loop.create_task(self._requests.follow(), name="pipeline.refresh_requests"),
        ]
        if self._background.maintenance is not None:
            tasks.append(loop.create_task(self._maintain(self._background.maintenance), name="pipeline.maintenance"))
        if self._background.delta_sync is not None:
            tasks.append(loop.create_task(self._background.delta_sync.run(), name="pipeline.delta"))
        try:
            while True:
                started_s = loop.time()
                left = await self._run_micro_batch()
                if not left:
                    await self._wait(started_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _maintain(self, maintenance: Maintenance) -> None:
        while True:
            await asyncio.sleep(MAINTENANCE_EVERY_MS / 1000)
            try:
                await maintenance.maintain()
            except LakestreamError as error:
                log.warning("pipeline.maintenance_failed error=%s", error)
            except Exception:
                log.exception("pipeline.maintenance_failed")  # a bug must not end all maintenance

    async def _run_micro_batch(self) -> bool:
        try:
            done = await self._micro_batches.run(self._requests.take())
        except Exception as error:
            if isinstance(error, LakestreamError):
                log.warning("pipeline.micro_batch_failed error=%s", error)
            else:
                log.exception("pipeline.micro_batch_failed")  # a bug must not end the pipeline
            self._error = str(error)
            await self._report(force=False)
            await asyncio.sleep(RETRY_MS / 1000)
            return False
        self._error = ""
        self._on_micro_batch(done)
        if self._background.delta_sync is not None:
            self._background.delta_sync.note(done.committed)
        await self._report(force=bool(done.moves))
        return done.left

    async def _wait(self, started_s: float) -> None:
        """Waits for the next interval, then for a change. A refresh request ends the wait immediately."""
        interval_s = self._options.interval_ms / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(started_s + interval_s):
                await self._requests.news.wait()
                return
        if self._micro_batches.is_busy:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_INTERVAL_MS / 1000):
                await self._changed.news.wait()

    async def _report(self, *, force: bool) -> None:
        now_ms = self._clock.now_ms()
        if not force and now_ms - self._reported_ms < REPORT_EVERY_MS:
            return
        is_first, self._reported_ms = not self._reported_ms, now_ms
        topics = {name: _reported(status, now_ms) for name, status in self._micro_batches.statuses.by_name().items()}
        for one in () if self._background.delta_sync is None else self._background.delta_sync.statuses.values():
            report = topics.get(one.name, TopicReport())
            topics[one.name] = replace(
                report, delta=True, delta_lagging=one.lagging, delta_lagging_since_ms=one.lagging_since_ms
            )
        try:
            if is_first:
                await self._reports.remove_old(now_ms)
            await self._reports.put(PipelineReport(now_ms, topics, self._error, self._name))
        except LakestreamError as error:
            log.warning("pipeline.status_write_failed error=%s", error)


def _reported(status: TopicStatus, now_ms: int) -> TopicReport:
    return TopicReport(
        lag_records=status.lag_records,
        lag_ms=max(0, now_ms - status.oldest_ms) if status.oldest_ms else 0,
        stalled=status.stalled,
        error=status.error,
        error_since_ms=status.error_since_ms if status.error else 0,
        moved_ms=status.committed_ms,
        files=status.files,
        records=status.records,
        bytes=status.bytes,
        converted=status.converted,
        unconverted=status.unconverted,
        conversion_error=status.conversion_error,
        pending_layout=status.pending_layout,
    )


def _log_result(done: MicroBatchResult) -> None:
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
