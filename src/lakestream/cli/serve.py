"""`lakestream serve` and `lakestream broker`: run brokers and HTTP until SIGTERM or Ctrl-C; `serve` also the pipeline.

A single worker runs in this process, several are its children (workers.py). They send the responses to accepted
requests before they end. The pipeline is a child of the first worker (pipeline_child.py).
"""

import argparse
import asyncio
import logging
import sys
from dataclasses import replace

import uvloop

from lakestream.cli.options import BROKER_OPTIONS, SERVE_OPTIONS, add_options, settings_of
from lakestream.cli.process.pipeline_child import pipeline_child
from lakestream.cli.process.signals import install_task_dump, stop_event
from lakestream.cli.process.workers import Supervisor, WorkerContext
from lakestream.config.parsing import shift_port
from lakestream.config.settings import Settings
from lakestream.server.process import open_process, tune_gc
from lakestream.server.worker_metrics import SharedMetricsPages

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
        return _work(
            settings,
            WorkerContext(
                number=0, pages=SharedMetricsPages(1), parent=-1, report_ready=lambda at: _print_ready(settings, [at])
            ),
        )
    for_workers = [for_worker(settings, number) for number in range(settings.workers)]  # validated before the fork
    return Supervisor(
        settings.workers,
        lambda context: _work(for_workers[context.number], context),
        lambda listening: _print_ready(settings, listening),
    ).run()


def for_worker(settings: Settings, number: int) -> Settings:
    """Returns a worker's settings: each has the next Kafka port, also in its advertised address; the first has HTTP."""
    advertise = settings.advertise
    return replace(
        settings,
        kafka=shift_port(settings.kafka, "--kafka", number),
        advertise=shift_port(advertise, "--advertise", number) if ":" in advertise else advertise,
        http="" if number else settings.http,
    )


def _work(settings: Settings, context: WorkerContext) -> int:
    if settings.workers > 1:
        _log_to_stderr(LOG_FORMAT.replace("%(message)s", f"worker={context.number} %(message)s"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, context))
    return 0


async def _serve(settings: Settings, context: WorkerContext) -> None:
    stop = stop_event(context.parent)
    async with open_process(settings, worker=context.number, pages=context.pages) as process:
        install_task_dump(process.broker.server.unanswered)
        tune_gc()
        context.report_ready(f"{process.broker.kafka} {process.http}")
        async with pipeline_child(settings if settings.pipeline and not context.number else None):
            await stop.wait()
            if settings.workers == 1:
                print("stopping", flush=True)


def _print_ready(settings: Settings, listening: list[str]) -> None:
    """Prints addresses and stores. `listening`: the addresses of Kafka and HTTP of each worker."""
    addresses = [pair.split(" ") for pair in listening]
    print(f"Kafka     {', '.join(kafka for kafka, _ in addresses)}")
    if addresses[0][1]:
        print(f"HTTP      http://{addresses[0][1]}")
    where = f" in {settings.data_dir.absolute()}" if settings.is_single_machine else ""
    print(f"metadata  {settings.metadata}{where}")
    print(f"storage   {settings.storage_url}")
    if settings.segments_dir is not None:
        print(f"segments  {settings.segments_dir.absolute()}")
    if settings.pipeline:
        print(f"tables    every {settings.interval_ms / 1000:g} s, by Spark on {settings.master}")
    print("ready; stop with Ctrl-C", flush=True)


def _log_to_stderr(log_format: str) -> None:
    logging.basicConfig(level=logging.INFO, format=log_format, stream=sys.stderr, force=True)
