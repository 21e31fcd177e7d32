"""`lakestream broker`: one broker, until SIGTERM or Ctrl-C; then it answers what it accepted and ends."""

import argparse
import asyncio
import logging
import signal

import uvloop

from lakestream.broker import open_broker
from lakestream.cli.options import BROKER_OPTIONS, add_options, settings_of
from lakestream.collector import settle
from lakestream.settings import Settings


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, BROKER_OPTIONS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    settings = settings_of(arguments, options=BROKER_OPTIONS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with open_broker(settings) as broker:
        settle()
        print(f"Kafka     {broker.kafka}")
        print(f"metadata  {settings.metadata}")
        print(f"storage   {settings.storage_url}")
        if settings.segments_dir is not None:
            print(f"segments  {settings.segments_dir.absolute()}")
        print("ready; stop with Ctrl-C", flush=True)
        await stop.wait()
        print("stopping", flush=True)
