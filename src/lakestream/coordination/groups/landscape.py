"""The topics that there are, as groups of the new protocol see them at one moment. Pure.

Made anew whenever topics come, go or grow, and shared by all groups of a broker: whoever has looked at this one need
not look again.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property

from lakestream.coordination.groups import patterns
from lakestream.metadata.group_records import Partitions, TopicShape
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId


class Landscape:
    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self.topics = topics
        self._matching: dict[str, tuple[str, ...]] = {}

    @cached_property
    def names(self) -> dict[str, str]:
        """By topic id."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def shape(self, name: str) -> TopicShape:
        topic = self.topics[name]
        return TopicShape(topic.topic_id, topic.partition_count)

    def matching(self, pattern: str) -> tuple[str, ...]:
        """The names that a pattern fits."""
        found = self._matching.get(pattern)
        if found is None:
            found = self._matching[pattern] = tuple(patterns.matching(pattern, self.topics))
        return found

    def partitions(self, named: Iterable[tuple[str, int]]) -> Partitions:
        """Those that exist, of pairs of a topic's name and a number."""
        return frozenset(
            PartitionId(topic.topic_id, number)
            for name, number in named
            if (topic := self.topics.get(name)) is not None and 0 <= number < topic.partition_count
        )

    def named(self, partitions: Iterable[PartitionId]) -> dict[str, list[int]]:
        """Numbers by the topic's name, in order; without those of topics that are gone."""
        found: dict[str, list[int]] = {}
        for topic_id, number in sorted(partitions):
            name = self.names.get(topic_id)
            if name is not None:
                found.setdefault(name, []).append(number)
        return found
