"""`lakestream serve` and `lakestream broker`: brokers and HTTP, until SIGTERM or Ctrl-C.

One worker runs in this process; several are children of it (workers.py). Either way what was accepted is answered
before the end, and a second start on the same data continues.
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace

import uvloop

from lakestream.addresses import shifted_address
from lakestream.board import Board
from lakestream.cli.options import BROKER_OPTIONS, add_options, settings_of
from lakestream.cli.workers import Seat, Supervisor
from lakestream.collector import settle
from lakestream.process import open_process
from lakestream.settings import Settings

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, BROKER_OPTIONS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    settings = settings_of(arguments, options=BROKER_OPTIONS)
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
    stop = _told_to_stop(seat)
    async with open_process(settings, worker=seat.number, board=seat.board) as process:
        settle()
        seat.say_ready(f"{process.broker.kafka} {process.http}")
        await stop.wait()
        if settings.workers == 1:
            print("stopping", flush=True)


def _told_to_stop(seat: Seat) -> asyncio.Event:
    """Set by SIGTERM, by Ctrl-C, or when the parent is gone. A second Ctrl-C does not wait any longer."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    def parent_is_gone() -> None:
        loop.remove_reader(seat.parent)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if seat.parent < 0:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    else:
        loop.add_reader(seat.parent, parent_is_gone)
    return stop


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
    print("ready; stop with Ctrl-C", flush=True)


def _log_to_stderr(form: str) -> None:
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr, force=True)
