"""Lines of the log that would come with every call, said once in a while: the same reason of the same thing."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from lakestream.clock import Clock

SAID_AGAIN_MS: Final = 60_000
REASONS_MAX: Final = 100
"""In that time: who lost a whole bucket need not read of every file in it."""


class Seldom:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ms: OrderedDict[Hashable, int] = OrderedDict()

    def is_news(self, reason: Hashable) -> bool:
        """Whether to say it now; if so, it counts as said."""
        now_ms = self._clock.now_ms()
        while self._said_ms and abs(now_ms - next(iter(self._said_ms.values()))) >= SAID_AGAIN_MS:
            self._said_ms.popitem(last=False)
        if reason in self._said_ms or len(self._said_ms) >= REASONS_MAX:
            return False
        self._said_ms[reason] = now_ms
        return True
