"""Tests of the metrics table and of its encoding in Prometheus' text format."""

import math
from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from lakestream.coordination.groups.coordinator import GroupFigures
from lakestream.coordination.transactions.coordinator import TransactionFigures
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.prometheus import METRICS, Distribution, MetricKind, reading, text
from lakestream.server import metrics_collector

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_docs_contain_the_table_of_metrics() -> None:
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.shown}` | {metric.kind.value} | {labels} | {metric.help} |")
    assert [line for line in DOCS.read_text().splitlines() if line.startswith("| `")] == rows


def test_metric_names_are_unique_and_end_with_their_unit() -> None:
    assert len(prometheus.BY_NAME) == len(METRICS)
    for metric in METRICS:
        if metric.kind is MetricKind.HISTOGRAM:
            assert metric.name.endswith("_seconds")


def test_samples_of_all_workers_are_encoded_together() -> None:
    durations = Distribution([0.1, 1.0], [3, 2, 1], 4.5)
    page = text(
        [
            ("0", reading(prometheus.KAFKA_CONNECTIONS, 2)),
            ("1", reading(prometheus.KAFKA_CONNECTIONS, 5)),
            ("0", reading(prometheus.KAFKA_REFUSED, 7)),
            ("0", reading(prometheus.KAFKA_REQUESTS, durations, "Fetch", "ok")),
        ]
    ).decode()
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    assert samples["lakestream_kafka_connections", ("worker", "0")] == 2
    assert samples["lakestream_kafka_connections", ("worker", "1")] == 5
    assert samples["lakestream_kafka_connections_refused_total", ("worker", "0")] == 7
    labels = (("outcome", "ok"), ("request", "Fetch"), ("worker", "0"))
    assert samples["lakestream_kafka_request_seconds_count", *labels] == 6
    assert samples["lakestream_kafka_request_seconds_sum", *labels] == 4.5
    assert samples["lakestream_kafka_request_seconds_bucket", ("le", "1.0"), *labels] == 5


def test_labels_and_special_values_are_encoded_when_they_need_it() -> None:
    reason = 'a "b" \\ c\nd'
    page = text(
        [
            ("0", reading(prometheus.PIPELINE_ERROR, True, reason)),
            ("0", reading(prometheus.PIPELINE_STATUS_AGE, math.inf)),
            ("0", reading(prometheus.PROCESS_CPU, 1e-7)),
        ]
    ).decode()
    samples = {sample.name: sample for family in text_string_to_metric_families(page) for sample in family.samples}
    assert samples["lakestream_pipeline_error"].labels == {"worker": "0", "reason": reason}
    assert 'reason="a \\"b\\" \\\\ c\\nd",worker="0"} 1\n' in page
    assert samples["lakestream_pipeline_status_age_seconds"].value == math.inf
    assert samples["lakestream_process_cpu_seconds_total"].value == 1e-7


def test_page_is_the_one_of_the_reference_encoder() -> None:
    """`prometheus_client` encodes the families that it parsed from the page: the result is the page."""
    durations = Distribution([0.00025, 0.5], [3, 2, 1], 4.5)
    page = text(
        [
            ("0", reading(prometheus.KAFKA_CONNECTIONS, 2.0)),
            ("1", reading(prometheus.KAFKA_REFUSED, 7.0)),
            ("0", reading(prometheus.KAFKA_REQUESTS, durations, "Fetch", "ok")),
            ("0", reading(prometheus.TABLE_ERROR, 1.0, "orders", 'no "file"')),
        ]
    )

    class Parsed(Collector):
        def collect(self) -> Iterable[Family]:
            return text_string_to_metric_families(page.decode())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Parsed())
    parsed_again = list(text_string_to_metric_families(generate_latest(registry).decode()))
    assert parsed_again == list(text_string_to_metric_families(page.decode()))
    assert [family.type for family in parsed_again] == [metric.kind.value for metric in METRICS]


def test_reading_fails_when_labels_are_missing() -> None:
    with pytest.raises(AssertionError):
        reading(prometheus.KAFKA_REQUESTS, 1)


def test_groups_and_transactions_have_readings() -> None:
    readings = [
        *metrics_collector._groups(GroupFigures(1, 2, 3, 4)),
        *metrics_collector._transactions(TransactionFigures(*range(7))),
    ]
    assert [one.value for one in readings] == [1, 2, 3, 4, 0, 1, 0.002, 3, 4, 5, 6]
    assert {one.metric for one in readings} <= set(prometheus.BY_NAME)


def test_readings_are_decoded_when_a_value_is_a_bool() -> None:
    """`/metrics` on the HTTP port returned 500 as soon as a pipeline had reported a topic."""
    readings = [reading(prometheus.TABLE_STALLED, value, "orders") for value in (True, False)]
    assert prometheus.decode_readings(prometheus.encode_readings(readings)) == readings
    assert b'lakestream_table_stalled{topic="orders",worker="0"} 1\n' in text([("0", readings[0])])
