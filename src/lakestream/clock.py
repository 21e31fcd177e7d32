"""The only doors to wall time, identity and randomness; everything else takes them as arguments.

Waiting is not here: `asyncio.sleep` and `asyncio.timeout` run on the event loop's time, which the simulation replaces.
"""

import random
import time
import uuid
from typing import Final, Protocol

CLOCK_SKEW_MS_MAX: Final = 60 * 1000
"""A broker whose clock is further off the stores' does not start, and stops appending: the age of stored bytes, and
with it the grace before they are swept, would mean nothing."""


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, milliseconds since 1970."""
        ...


class Ids(Protocol):
    def new(self) -> str:
        """A fresh identity: 32 hex digits, never given twice by anybody."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class RandomIds:
    def new(self) -> str:
        return uuid.uuid4().hex


class SeededIds:
    """Identities for the simulation: as unique as the seed's stream, and the same in every run."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck

    def new(self) -> str:
        return f"{self._luck.getrandbits(128):032x}"
