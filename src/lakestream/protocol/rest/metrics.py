"""`/metrics` in Prometheus' text format: every name on one page, and how readings become text.

Nothing is measured here. Objects count for themselves while they work; `measures.py` reads them when somebody asks, and
the readings of all workers of this machine are shown together, told apart by the label `worker`.
`docs/metrics.md` is this table for operators; a test holds the two together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
PREFIX: Final = "lakestream_"
WORKER: Final = "worker"


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    """Without the prefix, and without `_total`, which counters get."""
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")


KAFKA_CONNECTIONS = Metric("kafka_connections", Kind.GAUGE, "Open connections of Kafka clients")
KAFKA_REFUSED = Metric("kafka_connections_refused", Kind.COUNTER, "Connections refused because too many were open")
KAFKA_IN_FLIGHT = Metric("kafka_in_flight_bytes", Kind.GAUGE, "Bytes of requests taken and not yet answered")
KAFKA_REQUESTS = Metric(
    "kafka_request_seconds",
    Kind.HISTOGRAM,
    "Requests by kind and outcome, and how long they took",
    ("request", "outcome"),
)
KAFKA_BYTES_IN = Metric("kafka_request_bytes", Kind.COUNTER, "Bytes of requests", ("request",))
KAFKA_BYTES_OUT = Metric(
    "kafka_response_bytes", Kind.COUNTER, "Bytes of answers; Fetch: what was fetched", ("request",)
)

KAFKA_UNREADABLE = Metric(
    "kafka_unreadable", Kind.COUNTER, "Reads of records that are damaged or gone; the log says which file", ("topic",)
)

GROUPS = Metric("groups", Kind.GAUGE, "Groups that this broker coordinates and has in memory")
GROUP_MEMBERS = Metric("group_members", Kind.GAUGE, "Their members")
GROUP_REBALANCES = Metric("group_rebalances", Kind.COUNTER, "Generations (new protocol: epochs) that groups began")
GROUP_COMMITS = Metric("group_commits", Kind.COUNTER, "Commits of offsets, without those of transactions")

TRANSACTIONS_OPEN = Metric("transactions_open", Kind.GAUGE, "Open transactions that this broker coordinates")
TRANSACTIONS_OVERDUE = Metric(
    "transactions_overdue", Kind.GAUGE, "Those that are open for longer than their time-out; they are aborted at once"
)
TRANSACTIONS_OLDEST = Metric("transactions_oldest_seconds", Kind.GAUGE, "For how long the oldest of them is open")
TRANSACTIONS_ENDING = Metric(
    "transactions_ending", Kind.GAUGE, "Transactions that are decided, and not all of their logs know it yet"
)
TRANSACTIONS_ENDED = Metric(
    "transactions_ended", Kind.COUNTER, "Transactions that this broker ended: committed, aborted", ("outcome",)
)
TRANSACTIONS_TIMED_OUT = Metric(
    "transactions_timed_out", Kind.COUNTER, "Transactions that it aborted because their producer took too long"
)

LOG_APPENDED_BYTES = Metric("log_appended_bytes", Kind.COUNTER, "Bytes of record batches that got their offsets")
LOG_APPENDED_BATCHES = Metric("log_appended_batches", Kind.COUNTER, "Record batches that got their offsets")
LOG_APPENDED_RECORDS = Metric("log_appended_records", Kind.COUNTER, "Records that got their offsets")
LOG_HELD_BYTES = Metric("log_held_bytes", Kind.GAUGE, "Bytes of record batches that wait for storage or offsets")
LOG_CLAIMS = Metric("log_claims", Kind.COUNTER, "Claims made: writes of the metadata store that gave offsets")
LOG_CONFLICTS = Metric("log_claim_conflicts", Kind.COUNTER, "Claims that met another broker's at their offset")
LOG_STRUGGLES = Metric("log_claim_struggles", Kind.COUNTER, "Claims that needed more than one round trip")
LOG_VIEWS = Metric("log_views", Kind.GAUGE, "Logs whose end this broker keeps in memory")
LOG_WAITED_FOR = Metric("log_waited_for", Kind.GAUGE, "Logs at whose end somebody waits")

CACHE_HITS = Metric("cache_hits", Kind.COUNTER, "Reads of a claim's bytes that found them in memory")
CACHE_MISSES = Metric("cache_misses", Kind.COUNTER, "Reads of a claim's bytes that went to storage")
CACHE_BYTES = Metric("cache_bytes", Kind.GAUGE, "Bytes kept in memory for readers")

STORAGE_REQUESTS = Metric(
    "storage_operation_seconds",
    Kind.HISTOGRAM,
    "Operations on the object store by outcome, and how long they took",
    ("operation", "outcome"),
)
STORAGE_BYTES = Metric("storage_bytes", Kind.COUNTER, "Bytes moved to or from the object store", ("operation",))

PIPELINE_AGE = Metric(
    "pipeline_report_age_seconds", Kind.GAUGE, "How long ago a pipeline last said how it is doing; +Inf: none ever ran"
)
PIPELINE_TROUBLE = Metric(
    "pipeline_trouble", Kind.GAUGE, "1: its rounds fail as a whole; `reason` says why", ("reason",)
)
TABLE_LAG_RECORDS = Metric("table_lag_records", Kind.GAUGE, "Records that are not in the topic's table yet", ("topic",))
TABLE_LAG = Metric("table_lag_seconds", Kind.GAUGE, "Age of the oldest record that is not in the table", ("topic",))
TABLE_STUCK = Metric(
    "table_stuck", Kind.GAUGE, "1: the topic is not moved into its table, for half a minute or more", ("topic",)
)
TABLE_TROUBLE = Metric(
    "table_trouble",
    Kind.GAUGE,
    "1: the topic is stuck, or its last move came to nothing; `reason` says why. Absent: all is well",
    ("topic", "reason"),
)
TABLE_MOVED_AGE = Metric(
    "table_moved_age_seconds", Kind.GAUGE, "How long ago records last came into the table", ("topic",)
)
TABLE_FILES = Metric("table_files", Kind.COUNTER, "Files that this pipeline added to the table", ("topic", "pipeline"))
TABLE_RECORDS = Metric("table_records", Kind.COUNTER, "Records that this pipeline moved", ("topic", "pipeline"))
TABLE_BYTES = Metric("table_moved_bytes", Kind.COUNTER, "Bytes of records that it moved", ("topic", "pipeline"))
TABLE_TYPED_VALUES = Metric(
    "table_typed_values",
    Kind.COUNTER,
    "Values of typed topics that became columns, which give them back",
    ("topic", "pipeline"),
)
TABLE_RAW_VALUES = Metric(
    "table_raw_values",
    Kind.COUNTER,
    "Values of typed topics that keep their bytes: columns do not give them back exactly, or they have none",
    ("topic", "pipeline"),
)
TABLE_MISFIT = Metric(
    "table_misfit",
    Kind.GAUGE,
    "1: there were values without columns since the pipeline started; `reason` says why, of the last of them",
    ("topic", "reason"),
)
TABLE_UNMET = Metric(
    "table_unmet",
    Kind.GAUGE,
    "1: the table is not laid out as the topic's settings say; `reason` says why. Absent: it is",
    ("topic", "reason"),
)

DELTA_BEHIND = Metric(
    "delta_behind_seconds",
    Kind.GAUGE,
    "How long the topic's Delta table has been behind its table; 0: it is not",
    ("topic",),
)
DELTA_TROUBLE = Metric(
    "delta_trouble",
    Kind.GAUGE,
    "1: the Delta table is behind; `reason` says why. Absent: it is not",
    ("topic", "reason"),
)

LOOP_LAG = Metric("event_loop_lag_seconds", Kind.HISTOGRAM, "How late the event loop came to a timer")
PROCESS_CPU = Metric("process_cpu_seconds", Kind.COUNTER, "CPU time used, user and system")
PROCESS_MEMORY = Metric("process_resident_bytes", Kind.GAUGE, "Memory in use")
PROCESS_FILES = Metric("process_open_files", Kind.GAUGE, "Open files and sockets")
BROKER = Metric("broker_info", Kind.GAUGE, "Always 1; says who this broker is", ("node", "zone", "version"))

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Distribution(msgspec.Struct, array_like=True, frozen=True):
    """What a histogram has seen."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """How many fell into each bucket; one more than there are bounds."""
    total: float


class Reading(msgspec.Struct, array_like=True, frozen=True):
    metric: str
    labels: tuple[str, ...]
    value: float | Distribution


Readings = list[Reading]


def reading(metric: Metric, value: float | Distribution, *labels: str) -> Reading:
    assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
    return Reading(metric.name, labels, value)


def text(readings: Iterable[tuple[str, Reading]]) -> bytes:
    """Readings, each with its worker, as Prometheus wants them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(readings)))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, readings: list[tuple[str, Reading]]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            family = _FAMILIES[metric.kind](PREFIX + metric.name, metric.help, labels=(WORKER, *metric.labels))
            for worker, found in self._readings:
                if found.metric == metric.name:
                    _add(family, [worker, *found.labels], found.value)
            yield family


_FAMILIES: Final[dict[Kind, Callable[..., Family]]] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


def _add(family: Family, labels: list[str], value: float | Distribution) -> None:
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Distribution), family.name
        family.add_metric(labels, buckets=list(_cumulated(value)), sum_value=value.total)
    else:
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        assert not isinstance(value, Distribution), family.name
        family.add_metric(labels, value)


def _cumulated(seen: Distribution) -> Iterator[tuple[str, float]]:
    """Prometheus' buckets hold all that was not above their bound."""
    count = 0
    for bound, more in zip([*map(str, map(float, seen.bounds)), "+Inf"], seen.counts, strict=True):
        count += more
        yield bound, count
