"""An immutable image of all topics, for groups of the consumer protocol. Pure.

A new image is created when a topic is created, deleted or gets more partitions. All groups of a broker share it: a
group that was reconciled with this object needs no check against the topics again.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from lakestream.coordination.groups import regex_subscription
from lakestream.metadata.group_records import Partitions, TopicShape
from lakestream.metadata.topics import Topic
from lakestream.model import PartitionId

PATTERNS_MAX: Final = 1_000
"""Whose topics are kept."""


class TopicsImage:
    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self.topics = topics
        self._matching: dict[str, tuple[str, ...]] = {}

    def renewed(self, topics: Mapping[str, Topic]) -> "TopicsImage":
        """Returns the image of these topics. Only new names are matched with the patterns that are known."""
        image = TopicsImage(topics)
        new = [name for name in topics if name not in self.topics]
        for pattern, names in self._matching.items():
            kept = (name for name in names if name in topics)
            image.remember(pattern, (*kept, *regex_subscription.matching(pattern, new)))
        return image

    @cached_property
    def names(self) -> dict[str, str]:
        """Topic names by topic id."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def shape(self, name: str) -> TopicShape:
        topic = self.topics[name]
        return TopicShape(topic.topic_id, topic.partition_count)

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Returns the topic names that match a pattern."""
        names = self._matching.get(pattern)
        if names is None:
            names = tuple(regex_subscription.matching(pattern, self.topics))
            self.remember(pattern, names)
        return names

    def knows(self, pattern: str) -> bool:
        """Returns whether the topics that match the pattern are known already."""
        return pattern in self._matching

    def remember(self, pattern: str, names: Iterable[str]) -> None:
        """Keeps the topics that match, as `matching` would find them."""
        if len(self._matching) >= PATTERNS_MAX:
            del self._matching[next(iter(self._matching))]
        self._matching[pattern] = tuple(names)

    def partitions(self, named: Iterable[tuple[str, int]]) -> Partitions:
        """Converts pairs of a topic name and a number to partitions. Partitions that do not exist are left out."""
        return frozenset(
            PartitionId(topic.topic_id, number)
            for name, number in named
            if (topic := self.topics.get(name)) is not None and 0 <= number < topic.partition_count
        )

    def named(self, partitions: Iterable[PartitionId]) -> dict[str, list[int]]:
        """Returns sorted partition numbers by topic name. Partitions of deleted topics are left out."""
        numbers: dict[str, list[int]] = {}
        for topic_id, number in sorted(partitions):
            name = self.names.get(topic_id)
            if name is not None:
                numbers.setdefault(name, []).append(number)
        return numbers
