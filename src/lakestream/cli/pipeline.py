"""`lakestream pipeline`: moves the logs into tables, on a Spark of its own; until it is told to stop, or once.

Also what `spark-submit` runs (submit/pipeline.py), and the child of `lakestream serve` (child.py).
"""

import argparse
import asyncio
import logging
import sys
from typing import Final

import uvloop

from lakestream.cli.options import PIPELINE_OPTIONS, add_options, settings_of
from lakestream.cli.stopping import told_to_stop
from lakestream.cli.text import human_size, plural
from lakestream.errors import LakestreamError
from lakestream.moving import open_driver
from lakestream.pipeline.driver import Driver, PipelineOptions
from lakestream.pipeline.job import SparkJob, WorkSettings
from lakestream.pipeline.rounds import Round
from lakestream.pipeline.spark import SparkSettings
from lakestream.settings import Settings

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
BAR_WIDTH: Final = 30


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, PIPELINE_OPTIONS)
    parser.add_argument("--once", action="store_true", help="move what is there now, say what was done, and end")
    parser.add_argument("--parent", type=int, default=-1, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, options=PIPELINE_OPTIONS)
    level = logging.WARNING if arguments.once else logging.INFO
    logging.basicConfig(level=level, format=LOG_FORMAT, stream=sys.stderr, force=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_pipeline(settings, once=arguments.once, parent=arguments.parent))


async def _pipeline(settings: Settings, *, once: bool, parent: int) -> int:
    loop = asyncio.get_running_loop()
    stop = told_to_stop(parent)
    job = SparkJob(work_settings(settings), SparkSettings(master=settings.master))
    moving = loop.create_task(_move(settings, job, once=once), name="pipeline")
    stopping = loop.create_task(stop.wait(), name="pipeline.stop")
    try:
        await asyncio.wait([moving, stopping], return_when=asyncio.FIRST_COMPLETED)
        if moving.done():
            return moving.result()
        return 130 if once else 0
    finally:
        moving.cancel()
        stopping.cancel()
        closing = loop.create_task(job.close(), name="pipeline.close")  # what waits for Spark ends with it
        await asyncio.wait([moving, stopping, closing])


async def _move(settings: Settings, job: SparkJob, *, once: bool) -> int:
    """Spark comes up while the stores are opened."""
    starting = asyncio.get_running_loop().create_task(job.start(), name="pipeline.spark")
    options = PipelineOptions(interval_ms=settings.interval_ms, once=once)
    try:
        async with open_driver(settings, options, job) as driver:
            await starting
            return await _once(driver) if once else await _for_ever(driver)
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.exception()


async def _for_ever(driver: Driver) -> int:
    await driver.run()
    return 0


async def _once(driver: Driver) -> int:
    if sys.stdout.isatty():
        driver.on_round = Bar().show
    done = await driver.run_once()
    print(
        f"moved {plural(done.records, 'record')} ({human_size(done.bytes)}) into {plural(done.files, 'file')}"
        f" of {plural(done.tables, 'table')} in {sum(done.seconds.values()):.1f} s"
    )
    if done.stuck:
        raise LakestreamError(f"{plural(len(done.stuck), 'topic')} could not be moved: {'; '.join(done.stuck)}")
    return 0


def work_settings(settings: Settings) -> WorkSettings:
    folder = settings.segments_dir
    return WorkSettings(
        storage_url=settings.storage_url, segments_dir=str(folder.absolute()) if folder is not None else None
    )


class Bar:
    """How far it is, of what was there at the start; one line that is written over."""

    def __init__(self) -> None:
        self._records = 0

    def show(self, done: Round) -> None:
        self._records += done.records
        all_records = self._records + done.lag_records
        share = self._records / all_records if all_records else 1.0
        filled = "#" * round(share * BAR_WIDTH)
        end = "\n" if not done.left else ""
        print(f"\r[{filled:<{BAR_WIDTH}}] {share:4.0%}  {self._records:,} records", end=end, flush=True)
