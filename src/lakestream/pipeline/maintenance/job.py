"""Runs maintenance tasks on the pipeline's Spark, on half of its cores, so that micro-batches continue.

Before: service.py.  After: worker.py, in the workers.  Only small values are sent.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lakestream.aio.threads import WorkerThread
from lakestream.errors import Unavailable
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.spark.job import JOB_BYTES_PER_S_MIN, JOB_S_MIN, first_error_line, job_timed_out, pack
from lakestream.pipeline.spark.session import Spark
from lakestream.pipeline.tasks import WorkSettings

if TYPE_CHECKING:
    from lakestream.pipeline.maintenance.worker import FileRewriter


class LocalRewrites:
    """Runs the tasks in this process, on this event loop."""

    def __init__(self, rewriting: "FileRewriter") -> None:
        self._rewriting = rewriting

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        return await self._rewriting.run(tasks)


class SparkRewrites:
    """Runs the tasks on Spark. `spark`: returns the running Spark (`SparkJob.spark`), or None."""

    def __init__(self, spark: Callable[[], Spark | None], work: WorkSettings) -> None:
        self._spark = spark
        self._work = work
        self._thread = WorkerThread("maintenance")

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Unavailable: Spark is not running, or the whole job failed; the files that it wrote are orphan files."""
        if (spark := self._spark()) is None:
            raise Unavailable("Spark is not running: the next maintenance run retries")
        limit_s = JOB_S_MIN + sum(map(size_of, tasks)) / JOB_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(limit_s):
                results = await self._thread.submit(partial(_on_spark, spark, self._work, list(tasks)))
        except TimeoutError:
            raise Unavailable(job_timed_out(limit_s)) from None
        return [results[number] for number in range(len(tasks))]

    async def close(self) -> None:
        """Does not wait for running tasks: they end when the owner of Spark stops it."""
        self._thread.close()


def size_of(task: Task) -> int:
    return sum(source.size for source in task.sources)


def _on_spark(spark: Spark, work: WorkSettings, tasks: Sequence[Task]) -> dict[int, Result]:
    context = spark.context
    try:
        cores = max(1, context.defaultParallelism // 2)
        shares = [share for share in pack([size_of(task) for task in tasks], cores) if share]
        results: dict[int, Result] = {}
        for start in range(0, len(shares), cores):
            groups = [[(number, tasks[number]) for number in share] for share in shares[start : start + cores]]
            results.update(context.parallelize(groups, len(groups)).mapPartitions(partial(_in_worker, work)).collect())
    except Exception as error:  # of Java, py4j or a socket
        raise Unavailable(first_error_line(error)) from error
    return results


def _in_worker(work: WorkSettings, groups: Iterator[list[tuple[int, Task]]]) -> Iterator[tuple[int, Result]]:
    for group in groups:
        results = asyncio.run(_run(work, [task for _, task in group]))
        yield from zip((number for number, _ in group), results, strict=True)


async def _run(work: WorkSettings, tasks: Sequence[Task]) -> list[Result]:
    # Imported here: the driver does not need its kernels and their memory.
    from lakestream.catalog.locations import Locations, azure_account
    from lakestream.clock import RandomIds, SystemClock
    from lakestream.pipeline.maintenance.worker import FileRewriter
    from lakestream.storage.open_store import open_store
    from lakestream.storage.retrying import PATIENT, RetryingStore

    clock, ids = SystemClock(), RandomIds()
    objects = RetryingStore(open_store(work.storage_url, clock, ids), PATIENT, random.Random())
    try:
        locations = Locations(work.storage_url, azure_account(os.environ))
        return await FileRewriter(objects, locations, ids).run(tasks)
    finally:
        await objects.close()
