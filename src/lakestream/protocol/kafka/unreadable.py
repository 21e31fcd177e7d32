"""Records that consumers ask for and that cannot be read: told in the log, seldom, and counted for the metrics.

Beside handlers/fetch.py. The protocol has no room for a reason: a client hears only that the records are damaged, again
and again. So whoever runs the broker reads here which file it is, of which topic, and what to do about it.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from lakestream.clock import Clock
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import PartitionId

log = logging.getLogger(__name__)

SAID_AGAIN_MS: Final = 60_000
"""The same reason of the same topic is one line so often."""
REASONS_MAX: Final = 100
"""In that time: who lost a whole bucket need not read of every file in it."""
TOPICS_MAX: Final = 10_000
OTHERS: Final = "…"


class Unreadable:
    def __init__(self, name_of: Callable[[str], str | None], clock: Clock) -> None:
        self._name_of = name_of
        self._clock = clock
        self._said_ms: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.counts: Counter[str] = Counter()
        """How often, by the topic's name."""

    def note(self, partition: PartitionId, offset: int, error: LakestreamError) -> None:
        """That a read was answered with this error; of others than damage nothing is said."""
        if not isinstance(error, Corrupt):
            return
        name = self._name_of(partition.topic_id) or partition.topic_id
        self.counts[name if name in self.counts or len(self.counts) < TOPICS_MAX else OTHERS] += 1
        if self._is_news((partition.topic_id, str(error))):
            log.error(
                "kafka.unreadable topic=%s partition=%d offset=%d error=%s; its consumers wait there, and go on by"
                " themselves when that is mended",
                name,
                partition.number,
                offset,
                error,
            )

    def _is_news(self, reason: tuple[str, str]) -> bool:
        now_ms = self._clock.now_ms()
        while self._said_ms and now_ms - next(iter(self._said_ms.values())) >= SAID_AGAIN_MS:
            self._said_ms.popitem(last=False)
        if reason in self._said_ms or len(self._said_ms) >= REASONS_MAX:
            return False
        self._said_ms[reason] = now_ms
        return True
