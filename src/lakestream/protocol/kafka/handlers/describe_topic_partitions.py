"""DescribeTopicPartitions (key 75), v0.

Topics and their partitions, page by page: at most `response_partition_limit` partitions, and a cursor to go on from.
No topic named: all of them. In order of name. The partitions are described as Metadata does.

There are no eligible leader replicas: those lists are empty, never null, which the Java client cannot take.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from lakestream.coordination import placement
from lakestream.errors import LakestreamError
from lakestream.metadata.brokers import Broker
from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.handlers.metadata import partition_described
from lakestream.protocol.kafka.names import is_legal, zone_of
from lakestream.protocol.kafka.services import Services

PARTITIONS_MAX: Final = 2_000


@handles(75, versions=range(0, 1))
async def describe_topic_partitions(call: Call, services: Services) -> Body:
    cursor = call.body.cursor
    first = cursor.topic_name if cursor is not None else ""
    names = sorted({topic.name for topic in call.body.topics} or services.view.topics)
    room = max(1, min(call.body.response_partition_limit, PARTITIONS_MAX))
    near = placement.near(services.view.brokers or [services.me], zone_of(call.request.client_id))
    topics: list[dict[str, Any]] = []
    for name in names:
        if name < first:
            continue
        if room <= 0:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": 0}}
        start = max(cursor.partition_index, 0) if cursor is not None and name == first else 0
        described, more = await _described(name, start, room, near, services)
        topics.append(described)
        if more:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": start + room}}
        room -= len(described.get("partitions", ()))
    return {"topics": topics, "next_cursor": None}


async def _described(
    name: str, start: int, room: int, near: Sequence[Broker], services: Services
) -> tuple[dict[str, Any], bool]:
    """A topic's partitions from `start` on, as many as there is room for, and whether there are more."""
    try:
        if not is_legal(name):
            raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is no legal topic name")
        topic = await services.view.topic(name)
    except LakestreamError as error:
        return {"error_code": code_of(error), "name": name}, False
    numbers = range(topic.partition_count)[start:]
    none = {"eligible_leader_replicas": (), "last_known_elr": ()}
    return {
        "error_code": Code.NONE,
        "name": name,
        "topic_id": UUID(hex=topic.topic_id),
        "partitions": [partition_described(topic, number, near) | none for number in numbers[:room]],
        "topic_authorized_operations": authorized.ON_TOPIC,
    }, len(numbers) > room
