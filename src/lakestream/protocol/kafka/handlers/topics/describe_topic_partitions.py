"""DescribeTopicPartitions (key 75), v0.

Returns topics and their partitions, in pages of at most `response_partition_limit` partitions, with a cursor for the
next page. Without topic names it returns all topics. Topics are sorted by name; partitions have the fields of Metadata.

There are no eligible leader replicas: these lists are empty, not null, because the Java client fails on null.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from lakestream.coordination import placement
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.protocol.kafka import fields
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.fields import check_topic_name, zone_of
from lakestream.protocol.kafka.handlers.cluster.metadata import describe_partition
from lakestream.protocol.kafka.services import TopicsContext

PARTITIONS_MAX: Final = 2_000


@handles(75, versions=range(0, 1))
async def describe_topic_partitions(call: Call, context: TopicsContext) -> Body:
    cursor = call.body.cursor
    first = cursor.topic_name if cursor is not None else ""
    names = sorted({topic.name for topic in call.body.topics} or context.metadata_cache.topics)
    room = max(1, min(call.body.response_partition_limit, PARTITIONS_MAX))
    near = placement.in_zone(context.metadata_cache.brokers or [context.broker], zone_of(call.request.client_id))
    topics: list[dict[str, Any]] = []
    for name in names:
        if name < first:
            continue
        if room <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        start = max(cursor.partition_index, 0) if cursor is not None and name == first else 0
        described, more = await _describe(name, start, room, near, context)
        topics.append(described)
        if more:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": start + room}}
        room -= len(described.get("partitions", ()))
    return {"topics": topics, "next_cursor": None}


async def _describe(
    name: str, start: int, room: int, near: Sequence[Broker], context: TopicsContext
) -> tuple[dict[str, Any], bool]:
    """Returns at most `room` partitions of a topic from `start` on, and whether there are more."""
    try:
        check_topic_name(name)
        topic = await context.metadata_cache.topic(name)
    except LakestreamError as error:
        return {"error_code": code_of(error), "name": name}, False
    numbers = range(topic.partition_count)[start:]
    none = {"eligible_leader_replicas": (), "last_known_elr": ()}
    return {
        "error_code": Code.NONE,
        "name": name,
        "topic_id": UUID(hex=topic.topic_id),
        "partitions": [describe_partition(topic, number, near) | none for number in numbers[:room]],
        "topic_authorized_operations": fields.ON_TOPIC,
    }, len(numbers) > room
