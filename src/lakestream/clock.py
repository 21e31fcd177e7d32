"""The only sources of wall time, ids and randomness. All other modules receive them as arguments.

Waiting is not here: `asyncio.sleep` and `asyncio.timeout` use the event loop's time, which the simulation replaces.
"""

import random
import time
import uuid
from typing import Final, Protocol

CLOCK_SKEW_MS_MAX: Final = 60 * 1000
"""A broker whose clock differs more from the stores' clocks does not start, and stops appending: the age of stored
bytes would be wrong, and with it the grace period before the garbage collector deletes them."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Returns the wall time in milliseconds since 1970."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """Returns a globally unique id of 32 hex digits."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    def new(self) -> str:
        return uuid.uuid4().hex


class SeededIds:
    """Ids for the simulation: the same sequence in every run with the same seed."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def new(self) -> str:
        return f"{self._rng.getrandbits(128):032x}"
