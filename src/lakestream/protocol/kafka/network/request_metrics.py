"""Counters of requests and of reads that failed. The metrics collector reads them at each scrape.

Used by dispatch.py and handlers/records/. Everything here is for one event loop, and has no locks.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from lakestream.aio.log_limiter import LogRateLimiter
from lakestream.clock import Clock
from lakestream.data.log.topic_counts import OTHER_TOPICS, TOPICS_MAX
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import PartitionId

log = logging.getLogger(__name__)


class ReadErrorCounter:
    """Counts and logs reads of damaged records.

    The protocol has no field for the reason: a client only receives that records are damaged, at every retry. So the
    log names the topic and the damaged file for the operator, with the action to take.
    """

    def __init__(self, name_of: Callable[[str], str | None], clock: Clock) -> None:
        self._name_of = name_of
        self._log_limiter = LogRateLimiter(clock)
        self.counts: Counter[str] = Counter()
        """Failed reads by topic name."""

    def note(self, partition: PartitionId, offset: int, error: LakestreamError) -> None:
        """Counts a read that failed with this error, if the error is damage. Other errors are not counted."""
        if not isinstance(error, Corrupt):
            return
        name = self._name_of(partition.topic_id) or partition.topic_id
        self.counts[name if name in self.counts or len(self.counts) < TOPICS_MAX else OTHER_TOPICS] += 1
        if self._log_limiter.should_log((partition.topic_id, str(error))):
            log.error(
                "kafka.read_failed topic=%s partition=%d offset=%d error=%s: consumers cannot pass this offset; they"
                " resume when it is repaired",
                name,
                partition.number,
                offset,
                error,
            )


LATENCY_BOUNDS_S: Final = tuple(2**power / 4000 for power in range(19))
"""Upper bounds of the latency buckets: 0.25 ms, 0.5, 1 … 65 s. One more bucket counts all longer requests."""

OK: Final = "ok"
REFUSED: Final = "refused"  # it could not be answered in its protocol version; the connection was closed
FAILED: Final = "failed"  # a bug of the broker; the log has the traceback
CANCELLED: Final = "cancelled"  # the client disconnected before the response


class RequestCounter:
    """Counters of one request kind with one outcome."""

    __slots__ = ("bytes_in", "bytes_out", "latencies", "requests", "took_s")

    def __init__(self) -> None:
        self.requests = 0
        self.took_s = 0.0
        self.bytes_in = 0
        self.bytes_out = 0
        self.latencies = [0] * (len(LATENCY_BOUNDS_S) + 1)


class RequestCounts:
    def __init__(self) -> None:
        self.counted: dict[tuple[int, str], RequestCounter] = {}
        """By request key and outcome."""

    def note(self, key: int, outcome: str, took_s: float, bytes_in: int, bytes_out: int) -> None:
        counted = self.counted.get((key, outcome))
        if counted is None:
            counted = self.counted[key, outcome] = RequestCounter()
        counted.requests += 1
        counted.took_s += took_s
        counted.bytes_in += bytes_in
        counted.bytes_out += bytes_out
        # The bounds are powers of two, so the bucket is the bit length.
        counted.latencies[min(int(took_s * 4000).bit_length(), len(LATENCY_BOUNDS_S))] += 1
