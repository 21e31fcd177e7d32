"""Collects the metrics of a running broker, or of an HTTP process, for the metrics page.

The objects of the process count by themselves; a request of the page reads their counters. Only these run without a
request: the measurement of the event loop's lag, copies of histograms, and reads of pipeline statuses and of the lags
of tables and groups.
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

from lakestream.aio.background import BackgroundTasks
from lakestream.coordination.group_lag import GroupLagMonitor
from lakestream.coordination.groups.coordinator import GroupFigures
from lakestream.coordination.table_lag import TableLagMonitor
from lakestream.coordination.transactions.coordinator import TransactionFigures
from lakestream.data.log.log import Log
from lakestream.data.log.topic_counts import TopicCounter
from lakestream.errors import LakestreamError
from lakestream.metadata.claims import Lag
from lakestream.metadata.pipeline_status import TOPICS_MAX, PipelineReport, PipelineStatusStore, merge_statuses
from lakestream.protocol.kafka.dispatch import HANDLERS
from lakestream.protocol.kafka.network.request_metrics import LATENCY_BOUNDS_S, RequestCounts
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.prometheus import Distribution, Reading, Readings, reading
from lakestream.protocol.rest.server import HttpServer
from lakestream.server.broker import RunningBroker
from lakestream.server.latency_quantiles import COPY_EVERY_S, LatencyQuantiles
from lakestream.storage.metered import LATENCY_BOUNDS_MS, Meter

LAG_EVERY_S: Final = 0.5
PIPELINE_EVERY_S: Final = 5.0
STALLED_AFTER_MS: Final = 30_000
"""After this time of errors that are retried, a topic counts as stalled."""
REASON_MAX: Final = 200
VERSION: Final = version("lakestream")


class MetricsCollector:
    """All samples of a broker. The first worker of a server also has those of pipelines and tables."""

    def __init__(self, broker: RunningBroker, worker: int) -> None:
        self._broker = broker
        self._worker = worker
        self._loop_lag = LoopLag()
        self._quantiles = LatencyQuantiles(broker.counts)
        self._pipelines: list[PipelineReport] = []
        self._table_lags = TableLagMonitor(broker.node.stores.metadata, broker.services.metadata_cache)
        self._group_lags = GroupLagMonitor(
            broker.node.stores.metadata, broker.services.groups, broker.services.metadata_cache
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._loop_lag.run(), name="metrics.lag"))
        self._tasks.append(loop.create_task(self._copy_latencies(), name="metrics.quantiles"))
        self._group_lags.start()
        if self._worker == 0:
            self._tasks.append(loop.create_task(self._follow_pipelines(), name="metrics.pipelines"))
            self._table_lags.start()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._table_lags.close()
        await self._group_lags.close()

    async def page(self) -> bytes:
        return await asyncio.to_thread(prometheus.text, [(str(self._worker), one) for one in self.own()])

    def own(self) -> Readings:
        """Returns the samples of this worker."""
        broker = self._broker
        return [
            *_kafka(broker.server, broker.counts),
            *(
                reading(prometheus.KAFKA_QUANTILES, one.seconds, request_name(one.request), str(one.quantile))
                for one in self._quantiles.now()
            ),
            *(
                reading(prometheus.KAFKA_READ_ERRORS, count, name)
                for name, count in broker.services.read_errors.counts.items()
            ),
            *_topics(broker.node.log.topic_counts.by_name(broker.services.metadata_cache.cached_name)),
            *_groups(broker.services.groups.figures()),
            *_group_lags(self._group_lags, broker.services.clock.now_ms()),
            *_transactions(broker.services.transactions.figures()),
            *_log(broker.node.log),
            *_storage(broker.node.stores.meter),
            *self._tables(),
            reading(prometheus.LOOP_LAG, self._loop_lag.distribution()),
            *_process(),
            reading(prometheus.BROKER, 1, str(broker.services.broker.node_id), broker.services.broker.zone, VERSION),
        ]

    def _tables(self) -> Iterator[Reading]:
        """Yields samples of pipelines and tables in the first worker only: those of other workers would be the same."""
        if self._worker > 0:
            return
        services = self._broker.services
        now_ms = services.clock.now_ms()
        yield from _pipelines(self._pipelines, now_ms)
        yield from _lags(self._table_lags.by_topic(), services.metadata_cache.topics, now_ms)

    async def _copy_latencies(self) -> None:
        while True:
            await asyncio.sleep(COPY_EVERY_S)
            self._quantiles.copy()

    async def _follow_pipelines(self) -> None:
        """Reads the statuses that pipelines, which are other processes, write to the metadata store."""
        statuses = PipelineStatusStore(self._broker.node.stores.metadata)
        while True:
            with suppress(LakestreamError):  # the last status stays, and its age shows the problem
                self._pipelines = await statuses.all()
            await asyncio.sleep(PIPELINE_EVERY_S)


class HttpMetrics:
    """All samples of an HTTP process."""

    def __init__(self, server: HttpServer, meter: Meter) -> None:
        self._server = server
        self._meter = meter
        self._loop_lag = LoopLag()
        self._tasks = BackgroundTasks()

    def start(self) -> None:
        self._tasks.start(self._loop_lag.run(), "metrics.lag")

    async def close(self) -> None:
        await self._tasks.close()

    def own(self) -> Readings:
        return [
            reading(prometheus.HTTP_CONNECTIONS, self._server.connections),
            reading(prometheus.HTTP_REFUSED, self._server.refused),
            *_storage(self._meter),
            reading(prometheus.LOOP_LAG, self._loop_lag.distribution()),
            *_process(),
        ]


class LoopLag:
    """Measures how late the event loop runs a timer: the delay of every client by other work of the broker."""

    def __init__(self) -> None:
        self._counts = RequestCounts()

    async def run(self) -> None:
        while True:
            due_s = perf_counter() + LAG_EVERY_S  # the loop's own time does not advance while it is busy
            await asyncio.sleep(LAG_EVERY_S)
            self._counts.note(0, "", max(0.0, perf_counter() - due_s), 0, 0)

    def distribution(self) -> Distribution:
        counted = self._counts.counted.get((0, ""))
        if counted is None:
            return Distribution(LATENCY_BOUNDS_S, [0] * (len(LATENCY_BOUNDS_S) + 1), 0.0)
        return Distribution(LATENCY_BOUNDS_S, counted.latencies, counted.took_s)


def _kafka(server: KafkaServer, counts: RequestCounts) -> Iterator[Reading]:
    yield reading(prometheus.KAFKA_CONNECTIONS, len(server.connections))
    yield reading(prometheus.KAFKA_REFUSED, server.refused)
    yield reading(prometheus.KAFKA_IN_FLIGHT, server.bytes_in_flight)
    bytes_in: dict[str, int] = {}
    bytes_out: dict[str, int] = {}
    for (key, outcome), counted in counts.counted.items():
        name = request_name(key)
        latencies = Distribution(LATENCY_BOUNDS_S, counted.latencies, counted.took_s)
        yield reading(prometheus.KAFKA_REQUESTS, latencies, name, outcome)
        bytes_in[name] = bytes_in.get(name, 0) + counted.bytes_in
        bytes_out[name] = bytes_out.get(name, 0) + counted.bytes_out
    for name, count in bytes_in.items():
        yield reading(prometheus.KAFKA_BYTES_IN, count, name)
    for name, count in bytes_out.items():
        yield reading(prometheus.KAFKA_BYTES_OUT, count, name)


def _topics(counters: Mapping[str, TopicCounter]) -> Iterator[Reading]:
    for name, counter in counters.items():
        if counter.produced_batches:
            yield reading(prometheus.TOPIC_PRODUCED_BYTES, counter.produced_bytes, name)
            yield reading(prometheus.TOPIC_PRODUCED_BATCHES, counter.produced_batches, name)
            yield reading(prometheus.TOPIC_PRODUCED_RECORDS, counter.produced_records, name)
        if counter.fetched_batches:
            yield reading(prometheus.TOPIC_FETCHED_BYTES, counter.fetched_bytes, name)
            yield reading(prometheus.TOPIC_FETCHED_BATCHES, counter.fetched_batches, name)


def _groups(figures: GroupFigures) -> Iterator[Reading]:
    yield reading(prometheus.GROUPS, figures.groups)
    yield reading(prometheus.GROUP_MEMBERS, figures.members)
    yield reading(prometheus.GROUP_REBALANCES, figures.rebalances)
    yield reading(prometheus.GROUP_COMMITS, figures.commits)


def _group_lags(monitor: GroupLagMonitor, now_ms: int) -> Iterator[Reading]:
    for group, topic, lag in monitor.rows:
        yield reading(prometheus.GROUP_LAG_RECORDS, lag.records, group, topic)
        yield reading(prometheus.GROUP_LAG, _age_s(lag, now_ms), group, topic)
    yield reading(prometheus.GROUPS_UNMEASURED, monitor.unmeasured)


def _transactions(figures: TransactionFigures) -> Iterator[Reading]:
    yield reading(prometheus.TRANSACTIONS_OPEN, figures.open)
    yield reading(prometheus.TRANSACTIONS_OVERDUE, figures.overdue)
    yield reading(prometheus.TRANSACTIONS_OLDEST, figures.oldest_ms / 1000)
    yield reading(prometheus.TRANSACTIONS_COMPLETING, figures.completing)
    yield reading(prometheus.TRANSACTIONS_COMPLETED, figures.committed, "committed")
    yield reading(prometheus.TRANSACTIONS_COMPLETED, figures.aborted, "aborted")
    yield reading(prometheus.TRANSACTIONS_TIMED_OUT, figures.timed_out)


def _pipelines(reports: Sequence[PipelineReport], now_ms: int) -> Iterator[Reading]:
    """Yields the samples from the statuses of pipelines. The lag of tables is measured by brokers."""
    merged = merge_statuses(reports)
    age_s = math.inf if merged is None else max(0, now_ms - merged.at_ms) / 1000
    yield reading(prometheus.PIPELINE_STATUS_AGE, age_s)
    if merged is None:
        return
    if merged.error:
        yield reading(prometheus.PIPELINE_ERROR, 1, _label(merged.error))
    for name, topic in merged.topics.items():
        lasts = bool(topic.error) and now_ms - topic.error_since_ms >= STALLED_AFTER_MS
        yield reading(prometheus.TABLE_STALLED, bool(topic.stalled) or lasts, name)
        if reason := topic.stalled or topic.error:
            yield reading(prometheus.TABLE_ERROR, 1, name, _label(reason))
        if topic.delta:
            since_ms = topic.delta_lagging_since_ms if topic.delta_lagging else now_ms
            yield reading(prometheus.DELTA_LAG, max(0, now_ms - since_ms) / 1000, name)
        if topic.delta_lagging:
            yield reading(prometheus.DELTA_ERROR, 1, name, _label(topic.delta_lagging))
        if topic.conversion_error:
            yield reading(prometheus.TABLE_CONVERSION_ERROR, 1, name, _label(topic.conversion_error))
        if topic.pending_layout:
            yield reading(prometheus.TABLE_LAYOUT_PENDING, 1, name, _label(topic.pending_layout))
        if topic.moved_ms:
            yield reading(prometheus.TABLE_LAST_COMMIT_AGE, max(0, now_ms - topic.moved_ms) / 1000, name)
    for report in reports:
        for name, topic in report.topics.items():
            yield reading(prometheus.TABLE_FILES, topic.files, name, report.driver)
            yield reading(prometheus.TABLE_RECORDS, topic.records, name, report.driver)
            yield reading(prometheus.TABLE_INGESTED_BYTES, topic.bytes, name, report.driver)
            if topic.converted or topic.unconverted:
                yield reading(prometheus.TABLE_CONVERTED_VALUES, topic.converted, name, report.driver)
                yield reading(prometheus.TABLE_UNCONVERTED_VALUES, topic.unconverted, name, report.driver)


def _lags(lagging: Mapping[str, Lag], topics: Iterable[str], now_ms: int) -> Iterator[Reading]:
    """Yields the lag of at most TOPICS_MAX topics, lagging topics first."""
    for name in islice(dict.fromkeys([*lagging, *topics]), TOPICS_MAX):
        lag = lagging.get(name, Lag())
        yield reading(prometheus.TABLE_LAG_RECORDS, lag.records, name)
        yield reading(prometheus.TABLE_LAG, _age_s(lag, now_ms), name)


def _age_s(lag: Lag, now_ms: int) -> float:
    return max(0, now_ms - lag.oldest_ms) / 1000 if lag.records else 0


def _label(reason: str) -> str:
    return " ".join(reason.split())[:REASON_MAX]


def request_name(key: int) -> str:
    """Returns Kafka's name of a request; handlers have the same name in snake case."""
    handler = HANDLERS.get(key)
    return "".join(word.capitalize() for word in handler.serve.__name__.split("_")) if handler else "unreadable"


def _log(log: Log) -> Iterator[Reading]:
    figures = log.stats()
    yield reading(prometheus.LOG_APPENDED_BYTES, figures.bytes)
    yield reading(prometheus.LOG_APPENDED_BATCHES, figures.batches)
    yield reading(prometheus.LOG_APPENDED_RECORDS, figures.records)
    yield reading(prometheus.LOG_IN_FLIGHT_BYTES, figures.bytes_in_flight)
    yield reading(prometheus.LOG_CLAIMS, figures.claims)
    yield reading(prometheus.LOG_CLAIM_CONFLICTS, figures.conflicts)
    yield reading(prometheus.LOG_CLAIM_RETRIES, figures.claim_retries)
    yield reading(prometheus.LOG_CACHED_PARTITIONS, figures.cached_partitions)
    yield reading(prometheus.LOG_WAITING_FETCHES, figures.partitions_with_waiting_fetches)
    yield reading(prometheus.CACHE_HITS, figures.cache_hits)
    yield reading(prometheus.CACHE_MISSES, figures.cache_misses)
    yield reading(prometheus.CACHE_BYTES, figures.cache_bytes)


def _storage(meter: Meter) -> Iterator[Reading]:
    sizes: dict[str, int] = {}
    bounds = [bound / 1000 for bound in LATENCY_BOUNDS_MS]
    for operation, figures in meter.snapshot().items():
        latencies = Distribution(bounds, figures.latencies, figures.took_s)
        yield reading(prometheus.STORAGE_REQUESTS, latencies, operation.name, operation.outcome)
        sizes[operation.name] = sizes.get(operation.name, 0) + figures.bytes
    for name, size in sizes.items():
        yield reading(prometheus.STORAGE_BYTES, size, name)


def _process() -> Iterator[Reading]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield reading(prometheus.PROCESS_CPU, usage.ru_utime + usage.ru_stime)
    with suppress(OSError):  # no /proc outside Linux
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        yield reading(prometheus.PROCESS_MEMORY, pages * os.sysconf("SC_PAGE_SIZE"))
        yield reading(prometheus.PROCESS_FILES, len(os.listdir("/proc/self/fd")))
