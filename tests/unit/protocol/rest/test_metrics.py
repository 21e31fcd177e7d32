from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakestream import measures
from lakestream.coordination.groups.coordinator import GroupFigures
from lakestream.coordination.transactions.coordinator import TransactionFigures
from lakestream.protocol.rest import metrics
from lakestream.protocol.rest.metrics import METRICS, Distribution, Kind, reading, text

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"


def test_the_page_for_operators_is_the_table() -> None:
    rows = []
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.shown}` | {metric.kind.value} | {labels} | {metric.help} |")
    assert [line for line in DOCS.read_text().splitlines() if line.startswith("| `")] == rows


def test_names_are_unique_and_units_are_last() -> None:
    assert len(metrics.BY_NAME) == len(METRICS)
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            assert metric.name.endswith("_seconds")


def test_readings_of_all_workers_become_one_page() -> None:
    seen = Distribution([0.1, 1.0], [3, 2, 1], 4.5)
    page = text(
        [
            ("0", reading(metrics.KAFKA_CONNECTIONS, 2)),
            ("1", reading(metrics.KAFKA_CONNECTIONS, 5)),
            ("0", reading(metrics.KAFKA_REFUSED, 7)),
            ("0", reading(metrics.KAFKA_REQUESTS, seen, "Fetch", "ok")),
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


def test_labels_must_fit() -> None:
    with pytest.raises(AssertionError):
        reading(metrics.KAFKA_REQUESTS, 1)


def test_groups_and_transactions_have_readings() -> None:
    found = [*measures._groups(GroupFigures(1, 2, 3, 4)), *measures._transactions(TransactionFigures(*range(7)))]
    assert [one.value for one in found] == [1, 2, 3, 4, 0, 1, 0.002, 3, 4, 5, 6]
    assert {one.metric for one in found} <= set(metrics.BY_NAME)
