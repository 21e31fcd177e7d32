"""Runs moves on Spark, or in this process for tests and the simulation.

Before: micro_batch.py.  After: worker.py, in the workers.  Only small values are sent: moves to the workers,
descriptions of files back.

If a whole job fails, it is retried in halves: if one move kills its worker every time, only that move fails. If Spark
ended, the next job starts it again. The caller gets no error for any of this.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lakestream.aio.backoff import Backoff
from lakestream.aio.progress import reported
from lakestream.aio.threads import WorkerThread
from lakestream.errors import LakestreamError, Unavailable
from lakestream.model import MiB
from lakestream.pipeline.spark.session import Spark, SparkSettings, start_spark
from lakestream.pipeline.tasks import Move, MoveFailed, Outcome, WorkSettings

if TYPE_CHECKING:
    from lakestream.pipeline.worker import Work

log = logging.getLogger(__name__)

TASK_BYTES: Final = 256 * MiB
"""Above this size per core a job has more tasks than cores: less is lost with a worker, and the load is more even."""
JOB_S_MIN: Final = 600.0
JOB_BYTES_PER_S_MIN: Final = MiB
RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 30.0
CLOSE_S_MAX: Final = 15.0

_Numbered: TypeAlias = tuple[int, Move]


class LocalJob:
    """Runs moves in this process, on this event loop. Deterministic if the stores are."""

    def __init__(self, work: "Work") -> None:
        self._work = work

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        return await self._work.run(moves)

    async def close(self) -> None:
        await self._work.close()


class SparkJob:
    """Runs moves on Spark, which the first job starts unless `start` did. For one caller at a time."""

    def __init__(self, work: WorkSettings, settings: SparkSettings) -> None:
        self._work = work
        self._settings = settings
        self._spark: Spark | None = None
        self._thread = WorkerThread("spark")
        self._backoff = Backoff(RESTART_S_MIN, RESTART_S_MAX)
        self._starting: asyncio.Future[Spark] | None = None

    @property
    def alive(self) -> bool:
        return self._spark is not None and self._spark.alive

    @property
    def spark(self) -> Spark | None:
        """The running Spark; maintenance/job.py uses it too."""
        return self._spark if self.alive else None

    async def start(self) -> None:
        """Misconfigured: no suitable Java, or an invalid master. Unavailable: Spark does not start."""
        if self.alive:
            return
        await self._stop()
        self._starting = self._thread.submit(partial(start_spark, self._settings))
        with reported(f"starting Spark on {self._settings.master}"):
            spark = self._spark = await asyncio.shield(self._starting)
        self._backoff.reset()
        self._thread.submit(partial(_warm, spark))  # the first job runs after it, and finds workers

    async def restart(self) -> None:
        await self._stop()
        await self.start()

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        try:
            await self._ensure_spark()
        except LakestreamError as error:
            self._backoff.failed()
            return [MoveFailed(move, f"Spark is not running: {error}", True) for move in moves]
        return await self._run(moves)

    async def close(self) -> None:
        """Stops Spark, and with it all running jobs."""
        if self._spark is None and self._starting is not None:
            # The start was cancelled, but Spark runs, or is about to.
            with contextlib.suppress(LakestreamError, TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    self._spark = await self._starting
        await self._stop()
        self._thread.close()

    async def _ensure_spark(self) -> None:
        if self.alive:
            return
        if self._spark is not None:
            log.warning("pipeline.spark_ended restart_in=%.1fs", self._backoff.pause_s)
        await asyncio.sleep(self._backoff.pause_s)
        await self.start()

    async def _run(self, moves: Sequence[Move]) -> list[Outcome]:
        try:
            return await self._collect(moves)
        except Unavailable as error:
            reason = str(error)
        spark = self._spark
        if spark is None or await self._thread.submit(spark.is_stopped):
            await self._stop()
            self._backoff.failed()
            reason = "Spark ended during the job; it is restarted"
            log.warning("pipeline.job_failed moves=%d reason=%s", len(moves), reason)
        elif len(moves) > 1:
            log.warning("pipeline.job_failed moves=%d reason=%s; retried in halves", len(moves), reason)
            middle = len(moves) // 2
            return await self._run(moves[:middle]) + await self._run(moves[middle:])
        return [MoveFailed(move, reason, True) for move in moves]

    async def _collect(self, moves: Sequence[Move]) -> list[Outcome]:
        """Unavailable: the whole job failed."""
        if (spark := self._spark) is None:
            raise Unavailable("Spark ended during a micro-batch")
        limit_s = JOB_S_MIN + sum(move.size for move in moves) / JOB_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(limit_s):
                found = await self._thread.submit(partial(_on_spark, spark, self._work, list(moves)))
        except TimeoutError:
            await self._stop()
            raise Unavailable(job_timed_out(limit_s)) from None
        return [replace(found[number], move=move) for number, move in enumerate(moves)]

    async def _stop(self) -> None:
        """In another thread: the worker thread may hang in a call to the Spark that is to be stopped."""
        if (spark := self._spark) is not None:
            self._spark = self._starting = None
            await asyncio.to_thread(spark.stop)


def pack(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """Distributes moves over tasks: the largest first, each to the smallest task. Pure."""
    count = min(len(sizes), max(cores, -(-sum(sizes) // TASK_BYTES)))
    tasks: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        load, place = min(loads)
        loads[place] = (load + sizes[number] + 1, place)
        tasks[place].append(number)
    return tasks


def _warm(spark: Spark) -> None:
    """Forks the workers and loads their modules before the first job."""
    with contextlib.suppress(Exception):  # the first job reports what is wrong
        cores = spark.context.defaultParallelism
        spark.context.parallelize(range(cores), cores).mapPartitions(list).collect()


def _on_spark(spark: Spark, work: WorkSettings, moves: Sequence[Move]) -> dict[int, Outcome]:
    context = spark.context
    try:
        tasks = pack([move.size for move in moves], context.defaultParallelism)
        groups = [[(number, moves[number]) for number in task] for task in tasks]
        found = context.parallelize(groups, len(groups)).mapPartitions(partial(_in_worker, work)).collect()
    except Exception as error:  # of Java, py4j or a socket
        raise Unavailable(first_error_line(error)) from error
    return dict(found)


def _in_worker(work: WorkSettings, groups: Iterator[list[_Numbered]]) -> Iterator[tuple[int, Outcome]]:
    # Imported here: the driver does not need its kernels and their memory.
    from lakestream.pipeline.worker import run_task

    for group in groups:
        outcomes = run_task(work, [move for _, move in group])
        for (number, _), outcome in zip(group, outcomes, strict=True):
            sent_back = replace(outcome.move, pieces=(), columns=(), conversion=None)  # the driver has them
            yield number, replace(outcome, move=sent_back)


def job_timed_out(limit_s: float) -> str:
    return f"the job timed out after {limit_s:.0f} s: check that a Spark worker runs, with free cores and memory"


def first_error_line(error: Exception) -> str:
    """Returns the first line of a Java error that names an exception."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if "Exception:" in line or "Error:" in line]
    return f"the Spark job failed: {(named or lines or [type(error).__name__])[0][:300]}"
