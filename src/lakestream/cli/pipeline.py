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
from lakestream.pipeline.maintenance.job import SparkRewrites
from lakestream.pipeline.rounds import Round
from lakestream.pipeline.spark import SparkSettings
from lakestream.settings import Settings

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(message)s"
BAR_WIDTH: Final = 30
BAR_EVERY_S: Final = 0.5
RETRY_S: Final = (1.0, 5.0, 15.0)
"""Before what failed for the moment is tried again: `--once` ends well only if everything is moved."""


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
    rewrites = SparkRewrites(lambda: job.spark, work_settings(settings))
    try:
        async with open_driver(settings, options, job, rewrites) as driver:
            await starting
            return await _once(driver, job) if once else await _for_ever(driver)
    finally:
        await rewrites.close()
        starting.cancel()
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.exception()


async def _for_ever(driver: Driver) -> int:
    await driver.run()
    return 0


async def _once(driver: Driver, job: SparkJob) -> int:
    tally = Tally(shows_bar=sys.stdout.isatty())
    driver.on_round = tally.note
    drawing = asyncio.get_running_loop().create_task(_draw(tally, driver, job), name="pipeline.bar")
    try:
        await _move_all(driver, tally)
    finally:
        drawing.cancel()
        await asyncio.wait([drawing])
    print(tally.said(), flush=True)
    if tally.stuck:
        raise LakestreamError(f"{plural(len(tally.stuck), 'topic')} could not be moved: {'; '.join(tally.stuck)}")
    if tally.left:
        raise LakestreamError(f"{plural(tally.left, 'record')} could not be moved; the lines above say why")
    return 0


async def _move_all(driver: Driver, tally: "Tally") -> None:
    for wait_s in (0, *RETRY_S):
        await asyncio.sleep(wait_s)
        moved = -1
        while tally.moves > moved and (moved < 0 or tally.left):
            moved = tally.moves
            await driver.run_once()
        if not tally.left or tally.stuck:
            return


async def _draw(tally: "Tally", driver: Driver, job: SparkJob) -> None:
    """Also within a round, which may take minutes: as many tasks as have ended, and the seconds, so that it moves."""
    begun_s = asyncio.get_running_loop().time()
    while tally.shows_bar:
        await asyncio.sleep(BAR_EVERY_S)
        moving, waiting = driver.under_way
        if not waiting:
            continue
        share = await asyncio.to_thread(job.spark.share_done) if moving and job.spark is not None else 0.0
        tally.draw(int(moving * share), waiting, asyncio.get_running_loop().time() - begun_s)


def work_settings(settings: Settings) -> WorkSettings:
    folder = settings.segments_dir
    return WorkSettings(
        storage_url=settings.storage_url, segments_dir=str(folder.absolute()) if folder is not None else None
    )


class Tally:
    """What all rounds did together, and, in a terminal, how far it is: one line that is written over."""

    def __init__(self, *, shows_bar: bool) -> None:
        self.shows_bar = shows_bar
        self._records = self._bytes = self._files = 0
        self._seconds = 0.0
        self._moving = 0
        self.moves = 0
        self.left = 0
        """Records that were seen and are not in a table."""
        self.stuck: list[str] = []

    def note(self, done: Round) -> None:
        self.moves += done.moves
        self._records += done.records
        self._bytes += done.bytes
        self._files += done.files
        self._seconds += sum(done.seconds.values())
        self.left, self.stuck = done.lag_records, done.stuck
        self._moving = 0
        self.draw(0, self.left, self._seconds)

    def draw(self, moving: int, waiting: int, elapsed_s: float) -> None:
        """`moving`: how many of those that wait are done, though not committed yet."""
        self._moving = max(self._moving, moving)  # what is being committed is under way no longer
        if self.shows_bar:
            print(f"\r{self.bar(self._moving, waiting)}  {elapsed_s:.0f} s", end="", flush=True)

    def bar(self, moving: int, waiting: int) -> str:
        known = self._records + waiting
        done = self._records + moving
        share = done / known if known else 1.0
        return f"[{'#' * int(share * BAR_WIDTH):<{BAR_WIDTH}}] {share:4.0%}  {done:,} records"

    def said(self) -> str:
        over_bar = "\n" if self.shows_bar else ""
        return (
            f"{over_bar}moved {plural(self._records, 'record')} ({human_size(self._bytes)})"
            f" into {plural(self._files, 'file')} in {self._seconds:.1f} s"
        )
