"""Records that consumers ask for and that cannot be read: told in the log, seldom, and counted for the metrics.

Beside handlers/fetch.py. The protocol has no room for a reason: a client hears only that the records are damaged, again
and again. So whoever runs the broker reads here which file it is, of which topic, and what to do about it.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from lakestream.clock import Clock
from lakestream.errors import Corrupt, LakestreamError
from lakestream.model import PartitionId
from lakestream.seldom import Seldom

log = logging.getLogger(__name__)

TOPICS_MAX: Final = 10_000
OTHERS: Final = "…"


class Unreadable:
    def __init__(self, name_of: Callable[[str], str | None], clock: Clock) -> None:
        self._name_of = name_of
        self._seldom = Seldom(clock)
        self.counts: Counter[str] = Counter()
        """How often, by the topic's name."""

    def note(self, partition: PartitionId, offset: int, error: LakestreamError) -> None:
        """That a read was answered with this error; of others than damage nothing is said."""
        if not isinstance(error, Corrupt):
            return
        name = self._name_of(partition.topic_id) or partition.topic_id
        self.counts[name if name in self.counts or len(self.counts) < TOPICS_MAX else OTHERS] += 1
        if self._seldom.is_news((partition.topic_id, str(error))):
            log.error(
                "kafka.unreadable topic=%s partition=%d offset=%d error=%s; its consumers wait there, and go on by"
                " themselves when that is mended",
                name,
                partition.number,
                offset,
                error,
            )
