"""`lakestream serve`, `broker` and `http`: run server processes until SIGTERM or Ctrl-C.

`serve` and `broker` run brokers, each in a process of its own, and HTTP in another one; `serve` also the pipeline, a
child of the first broker's process (pipeline_child.py). `http` runs HTTP alone. All processes are children of one
parent (supervisor.py). They send the responses to accepted requests before they end.
"""

import argparse
import asyncio
import logging
import select
import sys
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from lakestream.cli.options import BROKER_OPTIONS, HTTP_OPTIONS, SERVE_OPTIONS, add_options, settings_of
from lakestream.cli.process.pipeline_child import pipeline_child
from lakestream.cli.process.signals import install_task_dump, readable, stop_event
from lakestream.cli.process.supervisor import Child, ChildContext, Supervisor
from lakestream.config.parsing import shift_port
from lakestream.config.settings import Settings
from lakestream.errors import Misconfigured
from lakestream.server.http import HttpProcess
from lakestream.server.process import PAGES_PER_BROKER, open_process, tune_gc
from lakestream.server.shared_pages import SharedPages

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


def configure_http(parser: argparse.ArgumentParser) -> None:
    add_options(parser, HTTP_OPTIONS)
    parser.set_defaults(run=lambda arguments: run_http(settings_of(arguments, options=HTTP_OPTIONS)))


def run(settings: Settings) -> int:
    _log_to_stderr(LOG_FORMAT)
    workers = [for_worker(settings, number) for number in range(settings.workers)]  # validated before the fork
    pages = SharedPages(PAGES_PER_BROKER * settings.workers)
    children = [
        Child(f"worker={number}", partial(_run_broker, worker, number, pages)) for number, worker in enumerate(workers)
    ]
    if settings.http:
        children.append(Child("http", partial(_run_http, HttpProcess(settings, pages))))
    return Supervisor(children, lambda listening: _print_ready(settings, listening)).run()


def run_http(settings: Settings) -> int:
    if not settings.http:
        raise Misconfigured("--http off: lakestream http has nothing to serve; give an address")
    _log_to_stderr(LOG_FORMAT)
    return Supervisor(
        [Child("http", partial(_run_http, HttpProcess(settings, SharedPages(0))))],
        lambda listening: _print_ready(replace(settings, pipeline=False), listening),
    ).run()


def for_worker(settings: Settings, number: int) -> Settings:
    """Returns a worker's settings: each has the next ports, also in its advertised address."""
    advertise = settings.advertise
    return replace(
        settings,
        kafka=shift_port(settings.kafka, "--kafka", number),
        advertise=shift_port(advertise, "--advertise", number) if ":" in advertise else advertise,
        probe=shift_port(settings.probe, "--probe", number) if settings.probe else "",
    )


def _run_broker(settings: Settings, number: int, pages: SharedPages, context: ChildContext) -> int:
    if settings.workers > 1:
        _log_to_stderr(LOG_FORMAT.replace("%(message)s", f"worker={number} %(message)s"))
    if context.first_ready >= 0:
        select.select([context.first_ready, context.parent], [], [])
    return _run(_serve_broker(settings, number, pages, context))


async def _serve_broker(settings: Settings, number: int, pages: SharedPages, context: ChildContext) -> None:
    stop = stop_event(context.parent)
    async with open_process(settings, number, pages) as process:
        install_task_dump(process.broker.server.unanswered)
        tune_gc()
        context.report_ready(f"{process.broker.kafka} {process.probe}".strip())
        async with pipeline_child(settings if settings.pipeline and not number else None):
            await stop.wait()


def _run_http(http: HttpProcess, context: ChildContext) -> int:
    _log_to_stderr(LOG_FORMAT.replace("%(message)s", "process=http %(message)s"))
    return _run(_serve_http(http, context))


async def _serve_http(http: HttpProcess, context: ChildContext) -> None:
    stop = stop_event(context.parent)
    if context.first_ready >= 0 and not await readable(context.first_ready, stop):
        return
    async with http.serving():
        install_task_dump(list)
        tune_gc()
        context.report_ready(http.listens)
        await stop.wait()


def _run(serving: Coroutine[Any, Any, None]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serving)
    return 0


def _print_ready(settings: Settings, listening: list[str]) -> None:
    """Prints addresses and stores. `listening`: the addresses of Kafka and the probes of each worker, then of HTTP."""
    *brokers, last = listening
    if not settings.http:
        brokers.append(last)
    kafka, _, probes = zip(*(addresses.partition(" ") for addresses in brokers), strict=True) if brokers else ((),) * 3
    if kafka:
        print(f"Kafka     {', '.join(kafka)}")
    if settings.http:
        print(f"HTTP      http://{last}")
    if any(probes):
        print(f"probes    {', '.join(f'http://{probe}' for probe in probes)}")
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
