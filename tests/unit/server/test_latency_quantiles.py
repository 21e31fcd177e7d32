"""Quantiles of request latencies, from the histograms."""

import pytest

from lakestream.protocol.kafka.network.request_metrics import CANCELLED, LATENCY_BOUNDS_S, OK, RequestCounts
from lakestream.server.latency_quantiles import COPIES, LatencyQuantiles, quantile_of


def seconds_by_quantile(quantiles: LatencyQuantiles, key: int) -> dict[float, float]:
    return {one.quantile: one.seconds for one in quantiles.now() if one.request == key}


@pytest.mark.parametrize(
    ("quantile", "counts", "seconds"),
    [
        (0.5, [10, 0, 0, 0], 0.5),
        (0.5, [0, 10, 0, 0], 1.5),
        (0.99, [99, 0, 1, 0], 1.0),
        (0.999, [99, 0, 1, 0], 2 + 2 * 0.9),
        (0.5, [0, 0, 0, 5], 4.0),  # the last bucket has no bound
    ],
)
def test_quantile_is_interpolated_within_its_bucket(quantile: float, counts: list[int], seconds: float) -> None:
    assert quantile_of(quantile, [1.0, 2.0, 4.0], counts) == pytest.approx(seconds)


def test_only_responses_of_the_last_minute_count() -> None:
    counts = RequestCounts()
    quantiles = LatencyQuantiles(counts)
    assert list(quantiles.now()) == []
    for _ in range(1_000):
        counts.note(0, OK, 0.0015, 1, 1)
    counts.note(0, CANCELLED, 60.0, 1, 1)
    counts.note(1, OK, 0.1, 1, 1)
    assert all(0.001 < value <= 0.002 for value in seconds_by_quantile(quantiles, 0).values())
    for _ in range(COPIES):
        quantiles.copy()
    assert list(quantiles.now()) == []
    counts.note(0, OK, 3.0, 1, 1)
    assert list(seconds_by_quantile(quantiles, 0)) == [0.5, 0.95, 0.99, 0.999]
    assert all(2 < value <= 4.096 for value in seconds_by_quantile(quantiles, 0).values())
    assert seconds_by_quantile(quantiles, 1) == {}


def test_longest_latencies_have_the_highest_bound() -> None:
    counts = RequestCounts()
    counts.note(0, OK, 10_000.0, 1, 1)
    assert set(seconds_by_quantile(LatencyQuantiles(counts), 0).values()) == {LATENCY_BOUNDS_S[-1]}
