"""Which topics the members of a group read, as far as they say so in the words of Kafka's consumers. Pure.

Asked only where Kafka asks too: before offsets are deleted or forgotten. Whatever members of other kinds (`connect`,
`stream`) say is never read, and what cannot be read counts as: perhaps all of them.
"""

import struct
from functools import lru_cache
from typing import Final

from lakestream.metadata.group_records import AnyGroup, ConsumerGroupRecord

CONSUMER: Final = "consumer"


def subscribed_topics(group: AnyGroup) -> frozenset[str] | None:
    """None: nobody knows."""
    if not group.members:
        return frozenset()
    if isinstance(group, ConsumerGroupRecord):
        return frozenset(group.topics).union(*(member.names for member in group.members.values()))
    if group.protocol_type != CONSUMER or group.protocol is None:
        return None
    found: set[str] = set()
    for member in group.members.values():
        topics = topics_of(member.metadata(group.protocol))
        if topics is None:
            return None
        found |= topics
    return frozenset(found)


@lru_cache(maxsize=1_000)
def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics in a consumer's subscription: a version, then strings, then what is of no interest here."""
    try:
        _, count = struct.unpack_from(">hi", metadata)
        at = 6
        topics = set()
        for _ in range(count):
            (size,) = struct.unpack_from(">h", metadata, at)
            name = metadata[at + 2 : at + 2 + size]
            if size < 0 or len(name) < size:
                return None
            topics.add(name.decode())
            at += 2 + size
        return frozenset(topics)
    except (struct.error, UnicodeDecodeError):
        return None
