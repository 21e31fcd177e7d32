"""What was asked, how it ended, how long it took: a few additions per request, read when somebody scrapes the metrics.

Beside dispatch.py. Everything here is for one event loop: no locks.
"""

from typing import Final

LATENCY_BOUNDS_S: Final = tuple(2**power / 4000 for power in range(19))
"""Upper bounds of the latency buckets: 0.25 ms, 0.5, 1 … 65 s; one more bucket holds what took longer."""

OK: Final = "ok"
REFUSED: Final = "refused"  # it could not be answered in its own words; the connection was closed
FAILED: Final = "failed"  # a bug of ours; the log has its trace
CANCELLED: Final = "cancelled"  # the client left before the answer


class Counted:
    """Of one request kind with one outcome."""

    __slots__ = ("bytes_in", "bytes_out", "latencies", "requests", "took_s")

    def __init__(self) -> None:
        self.requests = 0
        self.took_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)


class RequestCounts:
    def __init__(self) -> None:
        self.counted: dict[tuple[int, str], Counted] = {}
        """By request key and outcome."""

    def note(self, key: int, outcome: str, took_s: float, bytes_in: int, bytes_out: int) -> None:
        counted = self.counted.get((key, outcome))
        if counted is None:
            counted = self.counted[key, outcome] = Counted()
        counted.requests += 1
        counted.took_s += took_s
        counted.bytes_in += bytes_in
        counted.bytes_out += bytes_out
        # Bounds are powers of two, so the bucket is a count of bits.
        counted.latencies[min(int(took_s * 4000).bit_length(), len(LATENCY_BOUNDS_S))] += 1
