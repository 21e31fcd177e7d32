"""`/metrics` in Prometheus' text format: the table of all metrics, and the encoding of samples.

Nothing is measured here. Objects update their own counters; `server/metrics_collector.py` reads them at each scrape.
The samples of all workers of the machine are returned together, with the label `worker`. `docs/metrics.md` has the same
table for operators; a test compares the two.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "lakestream_"
WORKER: Final = "worker"


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(NamedTuple):
    name: str
    """Without the prefix, and without the suffix `_total` of counters."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        return PREFIX + self.name + ("_total" if self.kind is MetricKind.COUNTER else "")


KAFKA_CONNECTIONS = Metric("kafka_connections", MetricKind.GAUGE, "Open connections of Kafka clients")
KAFKA_REFUSED = Metric(
    "kafka_connections_refused", MetricKind.COUNTER, "Connections refused because too many were open"
)
KAFKA_IN_FLIGHT = Metric(
    "kafka_in_flight_bytes", MetricKind.GAUGE, "Bytes of requests received and not yet responded to"
)
KAFKA_REQUESTS = Metric(
    "kafka_request_seconds",
    MetricKind.HISTOGRAM,
    "Requests by kind and outcome, with their duration",
    ("request", "outcome"),
)
KAFKA_QUANTILES = Metric(
    "kafka_request_quantile_seconds",
    MetricKind.GAUGE,
    "Duration within which this share of the requests of the last minute got their response; absent without requests",
    ("request", "quantile"),
)
KAFKA_BYTES_IN = Metric("kafka_request_bytes", MetricKind.COUNTER, "Bytes of requests", ("request",))
KAFKA_BYTES_OUT = Metric(
    "kafka_response_bytes", MetricKind.COUNTER, "Bytes of responses, with the fetched records", ("request",)
)

KAFKA_READ_ERRORS = Metric(
    "kafka_read_errors",
    MetricKind.COUNTER,
    "Failed reads of damaged or missing records; the log names the file",
    ("topic",),
)

TOPIC_PRODUCED_BYTES = Metric(
    "topic_produced_bytes", MetricKind.COUNTER, "Bytes of record batches that this broker appended", ("topic",)
)
TOPIC_PRODUCED_BATCHES = Metric(
    "topic_produced_batches", MetricKind.COUNTER, "Record batches that this broker appended", ("topic",)
)
TOPIC_PRODUCED_RECORDS = Metric(
    "topic_produced_records",
    MetricKind.COUNTER,
    "Records that this broker appended, transaction markers included",
    ("topic",),
)
TOPIC_FETCHED_BYTES = Metric(
    "topic_fetched_bytes", MetricKind.COUNTER, "Bytes of record batches that this broker sent to consumers", ("topic",)
)
TOPIC_FETCHED_BATCHES = Metric(
    "topic_fetched_batches", MetricKind.COUNTER, "Record batches that this broker sent to consumers", ("topic",)
)

GROUPS = Metric("groups", MetricKind.GAUGE, "Groups that this broker coordinates and has in memory")
GROUP_MEMBERS = Metric("group_members", MetricKind.GAUGE, "Members of these groups")
GROUP_REBALANCES = Metric(
    "group_rebalances", MetricKind.COUNTER, "New generations of groups (consumer protocol: epochs)"
)
GROUP_COMMITS = Metric("group_commits", MetricKind.COUNTER, "Offset commits outside transactions")
GROUP_LAG_RECORDS = Metric(
    "group_lag_records",
    MetricKind.GAUGE,
    "Offsets between the group's committed offsets and the ends of the topic's partitions",
    ("group", "topic"),
)
GROUP_LAG = Metric(
    "group_lag_seconds",
    MetricKind.GAUGE,
    "Age of the oldest of these records; a lower bound if it is in the table",
    ("group", "topic"),
)
GROUPS_UNMEASURED = Metric(
    "groups_without_lag", MetricKind.GAUGE, "Groups whose lag is not measured, because this broker coordinates too many"
)

TRANSACTIONS_OPEN = Metric("transactions_open", MetricKind.GAUGE, "Open transactions that this broker coordinates")
TRANSACTIONS_OVERDUE = Metric(
    "transactions_overdue", MetricKind.GAUGE, "Open transactions past their timeout; the coordinator aborts them"
)
TRANSACTIONS_OLDEST = Metric("transactions_oldest_seconds", MetricKind.GAUGE, "Age of the oldest open transaction")
TRANSACTIONS_COMPLETING = Metric(
    "transactions_completing", MetricKind.GAUGE, "Transactions with a stored decision whose markers are not all written"
)
TRANSACTIONS_COMPLETED = Metric(
    "transactions_completed",
    MetricKind.COUNTER,
    "Transactions that this broker completed: committed, aborted",
    ("outcome",),
)
TRANSACTIONS_TIMED_OUT = Metric(
    "transactions_timed_out", MetricKind.COUNTER, "Transactions that this broker aborted at their timeout"
)

LOG_APPENDED_BYTES = Metric("log_appended_bytes", MetricKind.COUNTER, "Bytes of appended record batches")
LOG_APPENDED_BATCHES = Metric("log_appended_batches", MetricKind.COUNTER, "Appended record batches")
LOG_APPENDED_RECORDS = Metric("log_appended_records", MetricKind.COUNTER, "Appended records")
LOG_IN_FLIGHT_BYTES = Metric(
    "log_in_flight_bytes", MetricKind.GAUGE, "Bytes of record batches that wait for storage or for their claim"
)
LOG_CLAIMS = Metric(
    "log_claims", MetricKind.COUNTER, "Successful claims: writes to the metadata store that assign offsets"
)
LOG_CLAIM_CONFLICTS = Metric(
    "log_claim_conflicts", MetricKind.COUNTER, "Claims that conflicted with another broker's claim of the same offset"
)
LOG_CLAIM_RETRIES = Metric("log_claim_retries", MetricKind.COUNTER, "Claims that needed more than one round trip")
LOG_CACHED_PARTITIONS = Metric("log_cached_partitions", MetricKind.GAUGE, "Partitions whose state this broker caches")
LOG_WAITING_FETCHES = Metric(
    "log_partitions_with_waiting_fetches",
    MetricKind.GAUGE,
    "Partitions with at least one fetch that waits for new records",
)

CACHE_HITS = Metric("cache_hits", MetricKind.COUNTER, "Reads of a claim's bytes served from memory")
CACHE_MISSES = Metric("cache_misses", MetricKind.COUNTER, "Reads of a claim's bytes served from storage")
CACHE_BYTES = Metric("cache_bytes", MetricKind.GAUGE, "Bytes of record batches cached in memory")

STORAGE_REQUESTS = Metric(
    "storage_operation_seconds",
    MetricKind.HISTOGRAM,
    "Operations on the object store by outcome, with their duration",
    ("operation", "outcome"),
)
STORAGE_BYTES = Metric(
    "storage_bytes", MetricKind.COUNTER, "Bytes written to or read from the object store", ("operation",)
)

PIPELINE_STATUS_AGE = Metric(
    "pipeline_status_age_seconds", MetricKind.GAUGE, "Age of the newest pipeline status; +Inf: no pipeline ever ran"
)
PIPELINE_ERROR = Metric(
    "pipeline_error", MetricKind.GAUGE, "1: micro-batches fail for all topics; `reason` has the error", ("reason",)
)
TABLE_LAG_RECORDS = Metric(
    "table_lag_records", MetricKind.GAUGE, "Records that are not in the topic's table yet", ("topic",)
)
TABLE_LAG = Metric(
    "table_lag_seconds", MetricKind.GAUGE, "Age of the oldest record that is not in the table", ("topic",)
)
TABLE_STALLED = Metric(
    "table_stalled",
    MetricKind.GAUGE,
    "1: because of an error, no records of the topic have entered its table for 30 s or more",
    ("topic",),
)
TABLE_ERROR = Metric(
    "table_error",
    MetricKind.GAUGE,
    "1: the topic is stalled, or its last commit failed; `reason` has the error. Absent: no error",
    ("topic", "reason"),
)
TABLE_LAST_COMMIT_AGE = Metric(
    "table_last_commit_age_seconds", MetricKind.GAUGE, "Time since the last commit of records to the table", ("topic",)
)
TABLE_FILES = Metric(
    "table_files", MetricKind.COUNTER, "Files that this pipeline added to the table", ("topic", "pipeline")
)
TABLE_RECORDS = Metric(
    "table_records", MetricKind.COUNTER, "Records that this pipeline added to the table", ("topic", "pipeline")
)
TABLE_INGESTED_BYTES = Metric(
    "table_ingested_bytes",
    MetricKind.COUNTER,
    "Bytes of records that this pipeline added to the table",
    ("topic", "pipeline"),
)
TABLE_CONVERTED_VALUES = Metric(
    "table_converted_values",
    MetricKind.COUNTER,
    "Values of topics with schemas that became columns, from which Kafka clients get them byte for byte",
    ("topic", "pipeline"),
)
TABLE_UNCONVERTED_VALUES = Metric(
    "table_unconverted_values",
    MetricKind.COUNTER,
    "Values of topics with schemas that keep their bytes, because they have no columns or columns do not reproduce them"
    " exactly. Also record batches of any topic that cannot be read",
    ("topic", "pipeline"),
)
TABLE_CONVERSION_ERROR = Metric(
    "table_conversion_error",
    MetricKind.GAUGE,
    "1: since its start the pipeline has written values without columns, or record batches that cannot be read;"
    " `reason` has the newest cause",
    ("topic", "reason"),
)
TABLE_LAYOUT_PENDING = Metric(
    "table_layout_pending",
    MetricKind.GAUGE,
    "1: the table does not have the layout of the topic's settings yet; `reason` has the cause. Absent: it has",
    ("topic", "reason"),
)

DELTA_LAG = Metric(
    "delta_lag_seconds",
    MetricKind.GAUGE,
    "For how long the topic's Delta table has lagged behind its Iceberg table; 0: it does not lag",
    ("topic",),
)
DELTA_ERROR = Metric(
    "delta_error",
    MetricKind.GAUGE,
    "1: the Delta table lags; `reason` has the cause. Absent: it does not lag",
    ("topic", "reason"),
)

HTTP_CONNECTIONS = Metric("http_connections", MetricKind.GAUGE, "Open connections of HTTP clients")
HTTP_REFUSED = Metric(
    "http_connections_refused",
    MetricKind.COUNTER,
    "HTTP connections closed because there were too many, of all clients or of one address",
)

LOOP_LAG = Metric("event_loop_lag_seconds", MetricKind.HISTOGRAM, "Delay of a timer in the event loop")
PROCESS_CPU = Metric("process_cpu_seconds", MetricKind.COUNTER, "CPU time used, user and system")
PROCESS_MEMORY = Metric("process_resident_bytes", MetricKind.GAUGE, "Memory in use")
PROCESS_FILES = Metric("process_open_files", MetricKind.GAUGE, "Open files and sockets")
BROKER = Metric(
    "broker_info", MetricKind.GAUGE, "Always 1; node id, zone and version of this broker", ("node", "zone", "version")
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Distribution(msgspec.Struct, array_like=True, frozen=True):
    """The buckets and the sum of a histogram."""

    bounds: Sequence[float]
    counts: Sequence[int]
    """Values in each bucket; the last bucket has no upper bound."""
    total: float


class Reading(msgspec.Struct, array_like=True, frozen=True):
    metric: str
    labels: tuple[str, ...]
    value: float | Distribution


Readings = list[Reading]

encode_readings: Final = msgspec.msgpack.Encoder().encode
decode_readings: Final = msgspec.msgpack.Decoder(Readings).decode


def reading(metric: Metric, value: float | Distribution, *labels: str) -> Reading:
    assert len(labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}, not {labels}"
    return Reading(metric.name, labels, int(value) if isinstance(value, bool) else value)  # a bool is not decoded


def text(readings: Iterable[tuple[str, Reading]]) -> bytes:
    """Encodes readings, each with the name of its worker, in Prometheus' text format.

    Not by `prometheus_client`, which takes ten times as long: a large page would block the event loop."""
    by_metric: dict[str, list[tuple[tuple[str, ...], float | Distribution]]] = {metric.name: [] for metric in METRICS}
    for worker, one in readings:
        by_metric[one.metric].append(((worker, *one.labels), one.value))
    lines: list[str] = []
    for metric in METRICS:
        name, names = metric.shown, (WORKER, *metric.labels)
        order = sorted(range(len(names)), key=names.__getitem__)
        template = ",".join([f'{names[place]}="%s"' for place in order])
        lines.append(f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind.value}\n")
        for values, value in by_metric[metric.name]:
            labels = template % tuple([_escaped(values[place]) for place in order])
            if isinstance(value, Distribution):
                lines += _histogram(name, labels, value)
            else:
                lines.append(f"{name}{{{labels}}} {_number(value)}\n")
    return "".join(lines).encode()


def _histogram(name: str, labels: str, distribution: Distribution) -> Iterator[str]:
    """Yields the buckets as Prometheus defines them: each counts all values up to its bound."""
    total = 0
    for bound, count in zip([*map(float, distribution.bounds), math.inf], distribution.counts, strict=True):
        total += count
        yield f'{name}_bucket{{{labels},le="{_number(bound)}"}} {total}\n'
    yield f"{name}_count{{{labels}}} {total}\n{name}_sum{{{labels}}} {_number(distribution.total)}\n"


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text
