"""Limits how often a log line is written."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Final

from lakestream.clock import Clock

log = logging.getLogger(__name__)

PER_ADDRESS_MAX: Final = 5
PER_KIND_MAX: Final = 20
"""Lines per second: 20 lines of 150 bytes are 260 MB a day."""

REPEAT_MS: Final = 60_000
KEYS_MAX: Final = 100
"""Keys logged in that time. If a whole bucket is lost, one line for each of its files does not help."""


class LogRateLimiter:
    """Allows one log line per key and minute, for lines that every call would repeat."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: OrderedDict[Hashable, int] = OrderedDict()

    def should_log(self, key: Hashable) -> bool:
        """Returns whether to log this key now. If so, the key counts as logged."""
        now_ms = self._clock.now_ms()
        while self._logged_ms and abs(now_ms - next(iter(self._logged_ms.values()))) >= REPEAT_MS:
            self._logged_ms.popitem(last=False)
        if key in self._logged_ms or len(self._logged_ms) >= KEYS_MAX:
            return False
        self._logged_ms[key] = now_ms
        return True


class ClientLogLimiter:
    """Limits the log lines per second that clients cause, for each kind of line and for each address within a kind.

    The limit per address keeps one client from suppressing the lines about other clients. Suppressed lines are counted,
    and the count is logged as one line. For one event loop.
    """

    def __init__(self, per_address_max: int = PER_ADDRESS_MAX, per_kind_max: int = PER_KIND_MAX) -> None:
        self._per_address_max = per_address_max
        self._per_kind_max = per_kind_max
        self._second = 0
        self._by_address: Counter[tuple[str, str]] = Counter()  # key: kind and address; at most what may be logged
        self._by_kind: Counter[str] = Counter()
        self._suppressed: Counter[str] = Counter()

    def allow(self, kind: str, address: str, now_s: float) -> bool:
        """Returns whether a line of this kind about this client may be logged now."""
        self.log_suppressed(now_s)
        if self._by_kind[kind] >= self._per_kind_max or self._by_address[kind, address] >= self._per_address_max:
            self._suppressed[kind] += 1
            return False
        self._by_kind[kind] += 1
        self._by_address[kind, address] += 1
        return True

    def log_suppressed(self, now_s: float) -> None:
        """Logs how many lines were suppressed in the last second, if it is over."""
        if int(now_s) == self._second:
            return
        self._second = int(now_s)
        for kind, count in self._suppressed.items():
            log.warning("kafka.log_lines_suppressed kind=%s count=%d", kind, count)
        for counts in (self._by_address, self._by_kind, self._suppressed):
            counts.clear()
