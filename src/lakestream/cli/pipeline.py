"""`lakestream pipeline`: moves records from the logs into tables on Spark, until it is stopped, or once.

`spark-submit` (submit/pipeline.py) and the child process of `lakestream serve` (pipeline_child.py) run it too.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from lakestream.aio.backoff import Backoff
from lakestream.cli.options import PIPELINE_OPTIONS, add_options, settings_of
from lakestream.cli.output.text import human_size, plural
from lakestream.cli.process.signals import stop_event
from lakestream.config.settings import Settings
from lakestream.errors import LakestreamError, Unavailable
from lakestream.pipeline.driver import Driver, PipelineOptions
from lakestream.pipeline.maintenance.job import SparkRewrites
from lakestream.pipeline.spark.job import SparkJob
from lakestream.pipeline.spark.session import SparkSettings
from lakestream.pipeline.tasks import WorkSettings
from lakestream.pipeline.topic_status import MicroBatchResult
from lakestream.server.node import check_folders
from lakestream.server.pipeline import open_driver

log = logging.getLogger(__name__)

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
RETRY_S: Final = (1.0, 5.0, 15.0)
"""Waits before `--once` retries: it succeeds only if it moves all records."""
START_RETRY_S_MIN: Final = 1.0
START_RETRY_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""After a run of this length, the pauses between starts begin again at their minimum."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PIPELINE_OPTIONS)
    parser.add_argument("--once", action="store_true", help="move all records that exist now, print a summary, and end")
    parser.add_argument("--parent", type=int, default=-1, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, options=PIPELINE_OPTIONS)
    level = logging.WARNING if arguments.once else logging.INFO
    if arguments.once:
        check_folders(settings)  # before Spark starts
    logging.basicConfig(level=level, format=LOG_FORMAT, stream=sys.stderr, force=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_pipeline(settings, once=arguments.once, parent=arguments.parent))


async def _pipeline(settings: Settings, *, once: bool, parent: int) -> int:
    loop = asyncio.get_running_loop()
    stop = stop_event(parent)
    job = SparkJob(work_settings(settings), SparkSettings(master=settings.master))
    move = _once(settings, job) if once else _run(settings, job)
    moving = loop.create_task(move, name="pipeline")
    stopping = loop.create_task(stop.wait(), name="pipeline.stop")
    try:
        await asyncio.wait([moving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if moving.done():
            return moving.result()
        return 130 if once else 0
    finally:
        moving.cancel()
        stopping.cancel()
        closing = loop.create_task(job.close(), name="pipeline.close")  # ends all calls that wait for Spark
        await asyncio.wait([moving, stopping, closing])


async def _run(settings: Settings, job: SparkJob) -> int:
    """Runs the driver. If a store or Spark does not respond at the start, waits and tries again.

    Misconfigured: a setting is wrong, so waiting does not help."""
    loop, backoff = asyncio.get_running_loop(), Backoff(START_RETRY_S_MIN, START_RETRY_S_MAX, STEADY_S)
    while True:
        started_s = loop.time()
        try:
            async with _open(settings, job, once=False) as driver:
                await driver.run()
            return 0
        except Unavailable as error:
            wait_s = backoff.failed(loop.time() - started_s)
            log.warning("pipeline.start_failed error=%s retry_in=%.1fs", error, wait_s)
        await asyncio.sleep(wait_s)


@asynccontextmanager
async def _open(settings: Settings, job: SparkJob, *, once: bool) -> AsyncIterator[Driver]:
    """Starts Spark while it opens the stores. Unavailable: a store does not respond, or Spark does not start."""
    starting = asyncio.get_running_loop().create_task(job.start(), name="pipeline.spark")
    options = PipelineOptions(interval_ms=settings.interval_ms, once=once)
    rewrites = SparkRewrites(lambda: job.spark, work_settings(settings))
    try:
        async with open_driver(settings, options, job, rewrites) as driver:
            await starting
            yield driver
    except Unavailable:
        await starting  # a wrong setting of Spark comes first: waiting for a store does not correct it
        raise
    finally:
        await rewrites.close()
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.exception()


async def _once(settings: Settings, job: SparkJob) -> int:
    async with _open(settings, job, once=True) as driver:
        return await _move_once(driver)


async def _move_once(driver: Driver) -> int:
    total = MicroBatchResult()
    await _move_all(driver, total)
    print(_summary(total), flush=True)
    if total.stalled:
        raise LakestreamError(f"{plural(len(total.stalled), 'topic')} could not be moved: {'; '.join(total.stalled)}")
    if total.lag_records:
        raise LakestreamError(
            f"{plural(total.lag_records, 'record')} could not be moved; the log lines above have the errors"
        )
    return 0


async def _move_all(driver: Driver, total: MicroBatchResult) -> None:
    for wait_s in (0, *RETRY_S):
        await asyncio.sleep(wait_s)
        moved = -1
        while total.moves > moved and (moved < 0 or total.lag_records):
            moved = total.moves
            total.add(await driver.run_once())
        if not total.lag_records or total.stalled:
            return


def _summary(total: MicroBatchResult) -> str:
    return (
        f"moved {plural(total.records, 'record')} ({human_size(total.bytes)}) into {plural(total.files, 'file')}"
        f" in {sum(total.seconds.values()):.1f} s"
    )


def work_settings(settings: Settings) -> WorkSettings:
    folder = settings.segments_dir
    return WorkSettings(
        storage_url=settings.storage_url, segments_dir=str(folder.absolute()) if folder is not None else None
    )
