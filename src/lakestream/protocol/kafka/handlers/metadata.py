"""Metadata (key 3), v0-13.

Topics, their partitions, and the brokers. Names as leader of each partition one live broker in the client's zone, by
rendezvous hash: a hint where to go, since every broker serves every partition.

Missing topics are made where the client allows it (v4 allow_auto_topic_creation; older: always) and the broker does.
v0 empty list: all topics · v1 null: all · v5 offline replicas · v7 leader epoch (always 0) · v9 flexible
v10 topic ids · v12 lookup by id · v13 top-level error
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from lakestream.coordination import placement
from lakestream.errors import Conflict, LakestreamError, Missing
from lakestream.metadata.brokers import Broker
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.names import is_legal, zone_of
from lakestream.protocol.kafka.services import Services


@handles(3, versions=range(0, 14))
async def metadata(call: Call, services: Services) -> Body:
    brokers = services.view.brokers or [services.me]
    near = placement.near(brokers, zone_of(call.request.client_id))
    return {
        "brokers": [
            {"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.zone or None}
            for broker in brokers
        ],
        "cluster_id": services.cluster_id,
        "controller_id": services.me.node_id,
        "topics": [await _described(wanted, call, services, near) for wanted in _wanted(call, services)],
        "cluster_authorized_operations": (
            authorized.ON_CLUSTER if call.get("include_cluster_authorized_operations") else authorized.NOT_GIVEN
        ),
    }


def _wanted(call: Call, services: Services) -> Sequence[tuple[str | None, UUID | None]]:
    asked = call.body.topics
    if asked is None or (call.version == 0 and not asked):
        return [(name, None) for name in sorted(services.view.topics)]
    return [(topic.name, getattr(topic, "topic_id", None)) for topic in asked]


async def _described(
    wanted: tuple[str | None, UUID | None], call: Call, services: Services, near: Sequence[Broker]
) -> dict[str, Any]:
    name, topic_id = wanted
    try:
        if name is None:
            name = await services.view.name_of_id(topic_id.hex if topic_id else "")
            topic = await services.view.topic(name)
        else:
            topic = await _found_or_made(name, call, services)
    except LakestreamError as error:
        code = Code.UNKNOWN_TOPIC_ID if name is None and isinstance(error, Missing) else code_of(error)
        return {
            "error_code": code,
            "name": name if name is not None or call.version >= 12 else "",
            "topic_id": topic_id,
        }
    return {
        "error_code": Code.NONE,
        "name": name,
        "topic_id": UUID(hex=topic.topic_id),
        "is_internal": False,
        "partitions": [partition_described(topic, number, near) for number in range(topic.partition_count)],
        "topic_authorized_operations": (
            authorized.ON_TOPIC if call.get("include_topic_authorized_operations") else authorized.NOT_GIVEN
        ),
    }


async def _found_or_made(name: str, call: Call, services: Services) -> Topic:
    try:
        if not is_legal(name):
            raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is no legal topic name")
        return await services.view.topic(name)
    except Missing:
        if not (call.get("allow_auto_topic_creation", True) and services.settings.auto_create_topics):
            raise
    return await made(name, services, services.settings.default_partitions)


async def made(name: str, services: Services, partition_count: int) -> Topic:
    """As many clients may ask for a new topic at once, one of them makes it."""
    try:
        topic = await services.topics.create(name, Topic(services.ids.new(), partition_count))
    except Conflict:
        topic = await services.topics.get(name)
    services.view.learn(name, topic)
    return topic


def partition_described(topic: Topic, number: int, near: Sequence[Broker]) -> dict[str, Any]:
    leader = placement.chosen(f"{topic.topic_id}/{number}", near).node_id
    return {
        "error_code": Code.NONE,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": 0,
        "replica_nodes": [leader],
        "isr_nodes": [leader],
        "offline_replicas": [],
    }
