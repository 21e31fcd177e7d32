"""Moves to files, wherever the work is done: on Spark, or right here for tests and the simulation.

Before: rounds.py.  After: work.py, in the workers.  Only small values travel: moves out, descriptions of files back.

A job that fails as a whole is tried again in halves: if something in one move kills its worker every time, that move
alone is stuck. A Spark that died is started again by the next job. None of this is an error to the caller.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from lakestream.beside import Beside
from lakestream.errors import LakestreamError, Unavailable
from lakestream.model import MiB
from lakestream.pipeline.spark import Spark, SparkSettings, start_spark
from lakestream.pipeline.tasks import Move, Outcome, Stuck

if TYPE_CHECKING:
    from lakestream.pipeline.work import Work

log = logging.getLogger(__name__)

TASK_BYTES: Final = 256 * MiB
"""More than this for each core, and a round has more tasks: what is lost with a worker is less, and none works alone
while the others have finished."""
JOB_S_MIN: Final = 600.0
JOB_BYTES_PER_S_MIN: Final = MiB
RESTART_S_MIN: Final = 1.0
RESTART_S_MAX: Final = 30.0
CLOSE_S_MAX: Final = 15.0

_Numbered: TypeAlias = tuple[int, Move]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """Travels with every task. Credentials do not: each worker has them from its own environment."""

    storage_url: str
    segments_dir: str | None
    window_bytes: int = 32 * MiB  # of a move read at once
    room_bytes: int = 64 * MiB  # of all moves together that are in memory, before they are decompressed
    at_once: int = 16  # moves under way in one worker
    file_bytes_max: int = 128 * MiB  # of Parquet; also in memory while it is made


class LocalJob:
    """In this process, on this event loop: deterministic where the stores are."""

    def __init__(self, work: "Work") -> None:
        self._work = work

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        return await self._work.do(moves)

    async def close(self) -> None:
        await self._work.close()


@dataclass(slots=True)
class _Patience:
    """Between starts of a Spark that does not stay."""

    wait_s: float = 0.0

    def failed(self) -> None:
        self.wait_s = min(max(self.wait_s * 2, RESTART_S_MIN), RESTART_S_MAX)


class SparkJob:
    """`start` is optional: the first job starts Spark where nobody has. Used by one caller at a time."""

    def __init__(self, work: WorkSettings, settings: SparkSettings) -> None:
        self._work = work
        self._settings = settings
        self._spark: Spark | None = None
        self._thread = Beside("spark")
        self._patience = _Patience()
        self._starting: asyncio.Future[Spark] | None = None

    @property
    def alive(self) -> bool:
        return self._spark is not None and self._spark.alive

    @property
    def spark(self) -> Spark | None:
        """The one that runs, for who has other work for it too (maintenance/job.py)."""
        return self._spark if self.alive else None

    async def start(self) -> None:
        """Misconfigured: there is no Java that fits, or no such master. Unavailable: Spark does not come up."""
        if self.alive:
            return
        await self._stop()
        self._starting = self._thread.do(partial(start_spark, self._settings))
        self._spark = await asyncio.shield(self._starting)
        self._patience.wait_s = 0.0
        self._thread.do(partial(_warm, self._spark))  # the first job comes after it, and finds workers

    async def restart(self) -> None:
        await self._stop()
        await self.start()

    async def run(self, moves: Sequence[Move]) -> list[Outcome]:
        try:
            await self._have_spark()
        except LakestreamError as error:
            self._patience.failed()
            return [Stuck(move, f"Spark is not there: {error}", True) for move in moves]
        return await self._run(moves)

    async def close(self) -> None:
        """Whatever is under way ends with Spark."""
        if self._spark is None and self._starting is not None:
            # Nobody waits for it any longer, but it is there, or comes.
            with contextlib.suppress(LakestreamError, TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    self._spark = await self._starting
        await self._stop()
        self._thread.close()

    async def _have_spark(self) -> None:
        if self.alive:
            return
        if self._spark is not None:
            log.warning("pipeline.spark_ended restart_in=%.1fs", self._patience.wait_s)
        await asyncio.sleep(self._patience.wait_s)
        await self.start()

    async def _run(self, moves: Sequence[Move]) -> list[Outcome]:
        try:
            return await self._collect(moves)
        except Unavailable as error:
            reason = str(error)
        spark = self._spark
        if spark is None or await self._thread.do(spark.is_stopped):
            await self._stop()
            self._patience.failed()
            reason = "Spark ended while it was at work; it is started again"
            log.warning("pipeline.job_failed moves=%d reason=%s", len(moves), reason)
        elif len(moves) > 1:
            log.warning("pipeline.job_failed moves=%d reason=%s; tried again in halves", len(moves), reason)
            middle = len(moves) // 2
            return await self._run(moves[:middle]) + await self._run(moves[middle:])
        return [Stuck(move, reason, True) for move in moves]

    async def _collect(self, moves: Sequence[Move]) -> list[Outcome]:
        """Unavailable: the job failed as a whole."""
        if (spark := self._spark) is None:
            raise Unavailable("Spark ended in the middle of a round")
        limit_s = JOB_S_MIN + sum(move.size for move in moves) / JOB_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(limit_s):
                found = await self._thread.do(partial(_on_spark, spark, self._work, list(moves)))
        except TimeoutError:
            await self._stop()
            raise Unavailable(f"the job did not end within {limit_s:.0f} s: is there no worker, or no room?") from None
        return [replace(found[number], move=move) for number, move in enumerate(moves)]

    async def _stop(self) -> None:
        """In a thread of its own: the other one may hang in a call to the Spark that is to end."""
        if (spark := self._spark) is not None:
            self._spark = self._starting = None
            await asyncio.to_thread(spark.stop)


def pack(sizes: Sequence[int], cores: int) -> list[list[int]]:
    """Which moves share a task: the largest first, each to the task that has least. Pure."""
    count = min(len(sizes), max(cores, -(-sum(sizes) // TASK_BYTES)))
    tasks: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, place) for place in range(count)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        load, place = min(loads)
        loads[place] = (load + sizes[number] + 1, place)
        tasks[place].append(number)
    return tasks


def _warm(spark: Spark) -> None:
    """Have workers forked and their modules loaded, while nothing is to be done yet."""
    with contextlib.suppress(Exception):  # the first job will say what is wrong
        cores = spark.context.defaultParallelism
        spark.context.parallelize(range(cores), cores).mapPartitions(list).collect()


def _on_spark(spark: Spark, work: WorkSettings, moves: Sequence[Move]) -> dict[int, Outcome]:
    context = spark.context
    try:
        tasks = pack([move.size for move in moves], context.defaultParallelism)
        groups = [[(number, moves[number]) for number in task] for task in tasks]
        found = context.parallelize(groups, len(groups)).mapPartitions(partial(_in_worker, work)).collect()
    except Exception as error:  # whatever of Java, of py4j or of a socket it is
        raise Unavailable(said_by_spark(error)) from error
    return dict(found)


def _in_worker(work: WorkSettings, groups: Iterator[list[_Numbered]]) -> Iterator[tuple[int, Outcome]]:
    # Here and not above: the driver has no use for the kernels and the megabytes of it.
    from lakestream.pipeline.work import work_through

    for group in groups:
        outcomes = work_through(work, [move for _, move in group])
        for (number, _), outcome in zip(group, outcomes, strict=True):
            sent_back = replace(outcome.move, pieces=(), columns=(), typing=None)  # the driver has them
            yield number, replace(outcome, move=sent_back)


def said_by_spark(error: Exception) -> str:
    """Java's errors are pages; the first line that tells something is enough."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if "Exception:" in line or "Error:" in line]
    return f"Spark could not do it: {(told or lines or [type(error).__name__])[0][:300]}"
