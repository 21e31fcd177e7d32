"""Reads the counters of a running broker into the words of the metrics page.

Every object counts for itself while it works; nothing here runs unless somebody asks, apart from a look at the event
loop twice a second and, where there are several workers, a report on the board.
"""

import asyncio
import math
import os
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Final

import msgspec

from lakestream.board import Board
from lakestream.broker import RunningBroker
from lakestream.coordination.groups.coordinator import GroupFigures
from lakestream.coordination.lags import Lags
from lakestream.coordination.transactions.coordinator import TransactionFigures
from lakestream.data.log.log import Log
from lakestream.errors import LakestreamError
from lakestream.metadata.lag import Lag
from lakestream.metadata.reports import TOPICS_MAX, PipelineReport, Reports, together_of
from lakestream.protocol.kafka.counts import LATENCY_BOUNDS_S, RequestCounts
from lakestream.protocol.kafka.dispatch import HANDLERS
from lakestream.protocol.kafka.server import KafkaServer
from lakestream.protocol.rest import metrics
from lakestream.protocol.rest.metrics import Distribution, Reading, Readings, reading
from lakestream.storage.metered import LATENCY_BOUNDS_MS, Meter

LAG_EVERY_S: Final = 0.5
REPORT_EVERY_S: Final = 2.0
PIPELINE_EVERY_S: Final = 5.0
TROUBLE_LASTS_MS: Final = 30_000
REASON_MAX: Final = 200
VERSION: Final = version("lakestream")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Readings).decode


class Measures:
    """All readings of this worker, and of the others through the board."""

    def __init__(self, broker: RunningBroker, worker: int, board: Board) -> None:
        self._broker = broker
        self._worker = worker
        self._board = board
        self._lag = LoopLag()
        self._pipelines: list[PipelineReport] = []
        self._lags = Lags(broker.node.stores.metadata, broker.services.view)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._lag.run(), name="measures.lag"))
        if self._worker > 0:
            self._tasks.append(loop.create_task(self._report(), name="measures.report"))
        else:
            self._tasks.append(loop.create_task(self._follow_pipelines(), name="measures.pipelines"))
            self._lags.start()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lags.close()

    def page(self) -> bytes:
        return metrics.text(self._of_all_workers())

    def mine(self) -> Readings:
        broker = self._broker
        return [
            *_kafka(broker.server, broker.counts),
            *(
                reading(metrics.KAFKA_UNREADABLE, count, name)
                for name, count in broker.services.unreadable.counts.items()
            ),
            *_groups(broker.services.groups.figures()),
            *_transactions(broker.services.transactions.figures()),
            *_log(broker.node.log),
            *_storage(broker.node.stores.meter),
            *self._tables(),
            reading(metrics.LOOP_LAG, self._lag.seen()),
            *_process(),
            reading(metrics.BROKER, 1, str(broker.services.me.node_id), broker.services.me.zone, VERSION),
        ]

    def _tables(self) -> Iterator[Reading]:
        """By the first worker of a machine only: the others would say the same."""
        if self._worker > 0:
            return
        services = self._broker.services
        now_ms = services.clock.now_ms()
        yield from _pipelines(self._pipelines, now_ms)
        yield from _lags(self._lags.by_topic(), services.view.topics, now_ms)

    def _of_all_workers(self) -> Iterator[tuple[str, Reading]]:
        for found in self.mine():
            yield str(self._worker), found
        for worker in range(self._board.pages):
            if worker != self._worker and (body := self._board.read(worker)) is not None:
                for found in _decode(body):
                    yield str(worker), found

    async def _report(self) -> None:
        while True:
            self._board.write(self._worker, _encode(self.mine()))
            await asyncio.sleep(REPORT_EVERY_S)

    async def _follow_pipelines(self) -> None:
        """They are processes of their own, and say how they are doing in the metadata store."""
        reports = Reports(self._broker.node.stores.metadata)
        while True:
            with suppress(LakestreamError):  # then the last one counts, and its age shows
                self._pipelines = await reports.all()
            await asyncio.sleep(PIPELINE_EVERY_S)


class LoopLag:
    """How late the event loop comes to a timer: what every client waits besides its own work."""

    def __init__(self) -> None:
        self._counts = RequestCounts()

    async def run(self) -> None:
        while True:
            due_s = perf_counter() + LAG_EVERY_S  # the loop's own time stands still while it is busy
            await asyncio.sleep(LAG_EVERY_S)
            self._counts.note(0, "", max(0.0, perf_counter() - due_s), 0, 0)

    def seen(self) -> Distribution:
        counted = self._counts.counted.get((0, ""))
        if counted is None:
            return Distribution(LATENCY_BOUNDS_S, [0] * (len(LATENCY_BOUNDS_S) + 1), 0.0)
        return Distribution(LATENCY_BOUNDS_S, counted.latencies, counted.took_s)


def _kafka(server: KafkaServer, counts: RequestCounts) -> Iterator[Reading]:
    yield reading(metrics.KAFKA_CONNECTIONS, len(server.connections))
    yield reading(metrics.KAFKA_REFUSED, server.refused)
    yield reading(metrics.KAFKA_IN_FLIGHT, server.bytes_in_flight)
    bytes_in: dict[str, int] = {}
    bytes_out: dict[str, int] = {}
    for (key, outcome), counted in counts.counted.items():
        name = request_name(key)
        seen = Distribution(LATENCY_BOUNDS_S, counted.latencies, counted.took_s)
        yield reading(metrics.KAFKA_REQUESTS, seen, name, outcome)
        bytes_in[name] = bytes_in.get(name, 0) + counted.bytes_in
        bytes_out[name] = bytes_out.get(name, 0) + counted.bytes_out
    for name, count in bytes_in.items():
        yield reading(metrics.KAFKA_BYTES_IN, count, name)
    for name, count in bytes_out.items():
        yield reading(metrics.KAFKA_BYTES_OUT, count, name)


def _groups(figures: GroupFigures) -> Iterator[Reading]:
    yield reading(metrics.GROUPS, figures.groups)
    yield reading(metrics.GROUP_MEMBERS, figures.members)
    yield reading(metrics.GROUP_REBALANCES, figures.rebalances)
    yield reading(metrics.GROUP_COMMITS, figures.commits)


def _transactions(figures: TransactionFigures) -> Iterator[Reading]:
    yield reading(metrics.TRANSACTIONS_OPEN, figures.open)
    yield reading(metrics.TRANSACTIONS_OVERDUE, figures.overdue)
    yield reading(metrics.TRANSACTIONS_OLDEST, figures.oldest_ms / 1000)
    yield reading(metrics.TRANSACTIONS_ENDING, figures.ending)
    yield reading(metrics.TRANSACTIONS_ENDED, figures.committed, "committed")
    yield reading(metrics.TRANSACTIONS_ENDED, figures.aborted, "aborted")
    yield reading(metrics.TRANSACTIONS_TIMED_OUT, figures.timed_out)


def _pipelines(reports: Sequence[PipelineReport], now_ms: int) -> Iterator[Reading]:
    """What they say of themselves; how far tables are behind is not left to them."""
    said = together_of(reports)
    yield reading(metrics.PIPELINE_AGE, math.inf if said is None else max(0, now_ms - said.at_ms) / 1000)
    if said is None:
        return
    if said.trouble:
        yield reading(metrics.PIPELINE_TROUBLE, 1, _label(said.trouble))
    for name, topic in said.topics.items():
        lasts = bool(topic.trouble) and now_ms - topic.trouble_ms >= TROUBLE_LASTS_MS
        yield reading(metrics.TABLE_STUCK, bool(topic.stuck) or lasts, name)
        if why := topic.stuck or topic.trouble:
            yield reading(metrics.TABLE_TROUBLE, 1, name, _label(why))
        if topic.delta:
            since_ms = topic.delta_behind_ms if topic.delta_behind else now_ms
            yield reading(metrics.DELTA_BEHIND, max(0, now_ms - since_ms) / 1000, name)
        if topic.delta_behind:
            yield reading(metrics.DELTA_TROUBLE, 1, name, _label(topic.delta_behind))
        if topic.misfit:
            yield reading(metrics.TABLE_MISFIT, 1, name, _label(topic.misfit))
        if topic.unmet:
            yield reading(metrics.TABLE_UNMET, 1, name, _label(topic.unmet))
        if topic.moved_ms:
            yield reading(metrics.TABLE_MOVED_AGE, max(0, now_ms - topic.moved_ms) / 1000, name)
    for report in reports:
        for name, topic in report.topics.items():
            yield reading(metrics.TABLE_FILES, topic.files, name, report.driver)
            yield reading(metrics.TABLE_RECORDS, topic.records, name, report.driver)
            yield reading(metrics.TABLE_BYTES, topic.bytes, name, report.driver)
            if topic.typed or topic.raw:
                yield reading(metrics.TABLE_TYPED_VALUES, topic.typed, name, report.driver)
                yield reading(metrics.TABLE_RAW_VALUES, topic.raw, name, report.driver)


def _lags(behind: Mapping[str, Lag], topics: Iterable[str], now_ms: int) -> Iterator[Reading]:
    """Of all topics, those that are behind first, as many as may be shown."""
    for name in islice(dict.fromkeys([*behind, *topics]), TOPICS_MAX):
        lag = behind.get(name, Lag())
        yield reading(metrics.TABLE_LAG_RECORDS, lag.records, name)
        yield reading(metrics.TABLE_LAG, max(0, now_ms - lag.oldest_ms) / 1000 if lag.records else 0, name)


def _label(reason: str) -> str:
    return " ".join(reason.split())[:REASON_MAX]


def request_name(key: int) -> str:
    """As Kafka writes it; handlers are called the same in snake case."""
    handler = HANDLERS.get(key)
    return "".join(word.capitalize() for word in handler.work.__name__.split("_")) if handler else "unreadable"


def _log(log: Log) -> Iterator[Reading]:
    figures = log.figures()
    yield reading(metrics.LOG_APPENDED_BYTES, figures.bytes)
    yield reading(metrics.LOG_APPENDED_BATCHES, figures.batches)
    yield reading(metrics.LOG_APPENDED_RECORDS, figures.records)
    yield reading(metrics.LOG_HELD_BYTES, figures.bytes_held)
    yield reading(metrics.LOG_CLAIMS, figures.claims)
    yield reading(metrics.LOG_CONFLICTS, figures.conflicts)
    yield reading(metrics.LOG_STRUGGLES, figures.struggles)
    yield reading(metrics.LOG_VIEWS, figures.views)
    yield reading(metrics.LOG_WAITED_FOR, figures.waited_for)
    yield reading(metrics.CACHE_HITS, figures.cache_hits)
    yield reading(metrics.CACHE_MISSES, figures.cache_misses)
    yield reading(metrics.CACHE_BYTES, figures.cache_bytes)


def _storage(meter: Meter) -> Iterator[Reading]:
    sizes: dict[str, int] = {}
    bounds = [bound / 1000 for bound in LATENCY_BOUNDS_MS]
    for operation, figures in meter.snapshot().items():
        seen = Distribution(bounds, figures.latencies, figures.took_s)
        yield reading(metrics.STORAGE_REQUESTS, seen, operation.name, operation.outcome)
        sizes[operation.name] = sizes.get(operation.name, 0) + figures.bytes
    for name, size in sizes.items():
        yield reading(metrics.STORAGE_BYTES, size, name)


def _process() -> Iterator[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield reading(metrics.PROCESS_CPU, usage.ru_utime + usage.ru_stime)
    with suppress(OSError):  # no /proc outside Linux
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield reading(metrics.PROCESS_MEMORY, pages * os.sysconf("SC_PAGE_SIZE"))
        yield reading(metrics.PROCESS_FILES, len(os.listdir("/proc/self/fd")))
