"""Tasks of maintenance on the Spark that the pipeline has: beside its rounds, on half of the cores; so these go on.

Before: maintain.py.  After: work.py, in the workers.  Only small values travel.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lakestream.beside import Beside
from lakestream.errors import Unavailable
from lakestream.pipeline.job import JOB_BYTES_PER_S_MIN, JOB_S_MIN, WorkSettings, pack, said_by_spark
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.spark import Spark

if TYPE_CHECKING:
    from lakestream.pipeline.maintenance.work import Rewriting


class LocalRewrites:
    """In this process, on this event loop."""

    def __init__(self, rewriting: "Rewriting") -> None:
        self._rewriting = rewriting

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        return await self._rewriting.do(tasks)


class SparkRewrites:
    """`spark`: the one that runs now, if one does (`SparkJob.spark`)."""

    def __init__(self, spark: Callable[[], Spark | None], work: WorkSettings) -> None:
        self._spark = spark
        self._work = work
        self._thread = Beside("maintenance")

    async def run(self, tasks: Sequence[Task]) -> list[Result]:
        """Unavailable: Spark is not there, or the job failed as a whole: what it wrote are orphans."""
        if (spark := self._spark()) is None:
            raise Unavailable("Spark is not there yet, or not any more")
        limit_s = JOB_S_MIN + sum(map(size_of, tasks)) / JOB_BYTES_PER_S_MIN
        try:
            async with asyncio.timeout(limit_s):
                found = await self._thread.do(partial(_on_spark, spark, self._work, list(tasks)))
        except TimeoutError:
            raise Unavailable(f"the job did not end within {limit_s:.0f} s: is there no worker, or no room?") from None
        return [found[number] for number in range(len(tasks))]

    async def close(self) -> None:
        """What is under way ends with Spark, which is ended by whoever started it."""
        self._thread.close()


def size_of(task: Task) -> int:
    return sum(source.size for source in task.sources)


def _on_spark(spark: Spark, work: WorkSettings, tasks: Sequence[Task]) -> dict[int, Result]:
    context = spark.context
    try:
        cores = max(1, context.defaultParallelism // 2)
        shares = [share for share in pack([size_of(task) for task in tasks], cores) if share]
        rounds = [shares[start : start + cores] for start in range(0, len(shares), cores)]
        found: dict[int, Result] = {}
        for some in rounds:
            groups = [[(number, tasks[number]) for number in share] for share in some]
            found.update(context.parallelize(groups, len(groups)).mapPartitions(partial(_in_worker, work)).collect())
    except Exception as error:  # whatever of Java, of py4j or of a socket it is
        raise Unavailable(said_by_spark(error)) from error
    return found


def _in_worker(work: WorkSettings, groups: Iterator[list[tuple[int, Task]]]) -> Iterator[tuple[int, Result]]:
    for group in groups:
        results = asyncio.run(_done(work, [task for _, task in group]))
        yield from zip((number for number, _ in group), results, strict=True)


async def _done(work: WorkSettings, tasks: Sequence[Task]) -> list[Result]:
    # Here and not above: the driver has no use for the kernels and the megabytes of it.
    from lakestream.catalog.client_settings import azure_account
    from lakestream.catalog.locations import Locations
    from lakestream.clock import RandomIds, SystemClock
    from lakestream.pipeline.maintenance.work import Rewriting
    from lakestream.storage.opening import open_store
    from lakestream.storage.retrying import Retrying, RetrySettings

    clock, ids = SystemClock(), RandomIds()
    objects = Retrying(open_store(work.storage_url, clock, ids), RetrySettings(), random.Random())
    try:
        locations = Locations(work.storage_url, azure_account(os.environ))
        return await Rewriting(objects, locations, ids).do(tasks)
    finally:
        await objects.close()
