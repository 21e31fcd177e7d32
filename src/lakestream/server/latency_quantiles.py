"""Computes quantiles of the latencies of the last minute from the histograms of requests, for operators without PromQL.

Keeps a few copies of the histograms; requests themselves pay nothing.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lakestream.protocol.kafka.network.request_metrics import LATENCY_BOUNDS_S, OK, RequestCounts

QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)
COPY_EVERY_S: Final = 10.0
COPIES: Final = 6
"""The oldest copy is 50 to 60 s old."""


class LatencyQuantile(NamedTuple):
    request: int
    """Its key."""
    quantile: float
    seconds: float


class LatencyQuantiles:
    """Quantiles by request, of requests with a response, since the oldest copy of the histograms."""

    def __init__(self, counts: RequestCounts) -> None:
        self._counts = counts
        self._copies: deque[dict[int, list[int]]] = deque([{}], maxlen=COPIES)

    def copy(self) -> None:
        """Must be called every `COPY_EVERY_S`."""
        self._copies.append({key: list(latencies) for key, latencies in self._latencies()})

    def now(self) -> Iterator[LatencyQuantile]:
        """Yields nothing for a request that was not served in that time."""
        before = self._copies[0]
        for key, latencies in self._latencies():
            old = before.get(key) or [0] * len(latencies)
            counts = [now - then for now, then in zip(latencies, old, strict=True)]
            if any(counts):
                for quantile in QUANTILES:
                    yield LatencyQuantile(key, quantile, quantile_of(quantile, LATENCY_BOUNDS_S, counts))

    def _latencies(self) -> Iterator[tuple[int, list[int]]]:
        for (key, outcome), counted in self._counts.counted.items():
            if outcome == OK:
                yield key, counted.latencies


def quantile_of(quantile: float, bounds: Sequence[float], counts: Sequence[int]) -> float:
    """Returns what PromQL's `histogram_quantile` returns for buckets with these upper bounds and counts.

    It interpolates linearly within a bucket. The last bucket, without a bound, counts as the highest bound."""
    rank = quantile * sum(counts)
    lower, below = 0.0, 0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        lower, below = bound, below + count
    return bounds[-1]
