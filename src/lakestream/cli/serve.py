"""`lakestream serve` and `lakestream broker`: brokers and HTTP, until SIGTERM or Ctrl-C; `serve` has the pipeline too.

One worker runs in this process; several are children of it (workers.py). Either way what was accepted is answered
before the end, and a second start on the same data continues. The pipeline is a child of the first worker (child.py).
"""

import argparse
import asyncio
import logging
import sys
from dataclasses import replace

import uvloop

from lakestream.addresses import shifted_address
from lakestream.board import Board
from lakestream.cli.asked import tells_when_asked
from lakestream.cli.child import beside
from lakestream.cli.options import BROKER_OPTIONS, SERVE_OPTIONS, add_options, settings_of
from lakestream.cli.stopping import told_to_stop
from lakestream.cli.workers import Seat, Supervisor
from lakestream.collector import settle
from lakestream.process import open_process
from lakestream.settings import Settings

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, SERVE_OPTIONS)
    parser.add_argument("--no-pipeline", dest="pipeline", action="store_const", const="no", help="as --pipeline no")
    parser.set_defaults(run=lambda arguments: run(settings_of(arguments, options=SERVE_OPTIONS)))


def configure_broker(parser: argparse.ArgumentParser) -> None:
    add_options(parser, BROKER_OPTIONS)
    parser.set_defaults(
        run=lambda arguments: run(replace(settings_of(arguments, options=BROKER_OPTIONS), pipeline=False))
    )


def run(settings: Settings) -> int:
    _log_to_stderr(LOG_FORMAT)
    if settings.workers == 1:
        return _work(settings, Seat(number=0, board=Board(1), parent=-1, say_ready=lambda at: _greet(settings, [at])))
    for_workers = [for_worker(settings, number) for number in range(settings.workers)]  # a wrong one is found here
    return Supervisor(
        settings.workers,
        lambda seat: _work(for_workers[seat.number], seat),
        lambda listening: _greet(settings, listening),
    ).run()


def for_worker(settings: Settings, number: int) -> Settings:
    """Each worker has the port after the last one's, told to clients too; the first has HTTP."""
    advertise = settings.advertise
    return replace(
        settings,
        kafka=shifted_address(settings.kafka, "--kafka", number),
        advertise=shifted_address(advertise, "--advertise", number) if ":" in advertise else advertise,
        http="" if number else settings.http,
    )


def _work(settings: Settings, seat: Seat) -> int:
    if settings.workers > 1:
        _log_to_stderr(LOG_FORMAT.replace("%(message)s", f"worker={seat.number} %(message)s"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, seat))
    return 0


async def _serve(settings: Settings, seat: Seat) -> None:
    stop = told_to_stop(seat.parent)
    async with open_process(settings, worker=seat.number, board=seat.board) as process:
        tells_when_asked(process.broker.server.unanswered)
        settle()
        seat.say_ready(f"{process.broker.kafka} {process.http}")
        async with beside(settings if settings.pipeline and not seat.number else None):
            await stop.wait()
            if settings.workers == 1:
                print("stopping", flush=True)


def _greet(settings: Settings, listening: list[str]) -> None:
    """`listening`: for each worker, where Kafka and HTTP are."""
    places = [place.split(" ") for place in listening]
    print(f"Kafka     {', '.join(kafka for kafka, _ in places)}")
    if places[0][1]:
        print(f"HTTP      http://{places[0][1]}")
    where = f" in {settings.data_dir.absolute()}" if settings.on_one_machine else ""
    print(f"metadata  {settings.metadata}{where}")
    print(f"storage   {settings.storage_url}")
    if settings.segments_dir is not None:
        print(f"segments  {settings.segments_dir.absolute()}")
    if settings.pipeline:
        print(f"tables    every {settings.interval_ms / 1000:g} s, by Spark on {settings.master}")
    print("ready; stop with Ctrl-C", flush=True)


def _log_to_stderr(form: str) -> None:
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr, force=True)
