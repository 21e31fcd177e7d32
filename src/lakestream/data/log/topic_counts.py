"""Counts what is appended to and fetched from each topic. Used by claimer.py and by the Fetch handler.

Everything here is for one event loop, and has no locks: one lookup for each claim and for each fetched partition with
records, never for a record. A deleted topic is dropped when the counts are read.
"""

from collections.abc import Callable
from typing import Final

TOPICS_MAX: Final = 1_000
"""Topics with counters of their own. All others share one: a topic keeps its counter, because counters must not
decrease."""
OTHER_TOPICS: Final = "(other)"
"""Name of the shared counter; no topic can have it."""


class TopicCounter:
    """Totals of one topic since it was first used."""

    __slots__ = ("fetched_batches", "fetched_bytes", "produced_batches", "produced_bytes", "produced_records")

    def __init__(self) -> None:
        self.produced_bytes = 0
        self.produced_batches = 0
        self.produced_records = 0
        self.fetched_bytes = 0
        self.fetched_batches = 0


class TopicCounts:
    def __init__(self) -> None:
        self._by_id: dict[str, TopicCounter] = {}
        self._others = TopicCounter()

    def of(self, topic_id: str) -> TopicCounter:
        return self._by_id.get(topic_id) or self._added(topic_id)

    def by_name(self, name_of: Callable[[str], str | None]) -> dict[str, TopicCounter]:
        """Returns the counters by topic name, and drops those of deleted topics.

        `name_of`: returns the name of a topic id, or None."""
        names = {topic_id: name_of(topic_id) for topic_id in self._by_id}
        for topic_id, name in names.items():
            if name is None:
                del self._by_id[topic_id]
        by_name = {name: self._by_id[topic_id] for topic_id, name in names.items() if name is not None}
        return by_name | {OTHER_TOPICS: self._others}

    def _added(self, topic_id: str) -> TopicCounter:
        if len(self._by_id) >= TOPICS_MAX:
            return self._others
        counter = self._by_id[topic_id] = TopicCounter()
        return counter
