"""Metadata (key 3), v0-13.

Returns topics, their partitions, and the brokers. The leader of each partition is one live broker in the client's zone,
by rendezvous hash. It is only a preference, because every broker serves every partition.

Missing topics are created if the client (v4 allow_auto_topic_creation; older: always) and the broker allow it.
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
from lakestream.protocol.kafka import fields
from lakestream.protocol.kafka.dispatch import Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.fields import check_topic_name, zone_of
from lakestream.protocol.kafka.services import ClusterContext
from lakestream.protocol.kafka.wire.metadata_response import (
    DescribedCluster,
    DescribedTopic,
    encode_response,
    encode_topic,
)
from lakestream.records.file_region import BufferOrFile

NULL_NAMES_FROM = 12


@handles(3, versions=range(0, 14))
async def metadata(call: Call, context: ClusterContext) -> list[BufferOrFile]:
    zone = _zone_with_brokers(zone_of(call.request.client_id), context)
    topics = [await _encoded_topic(request, call, context, zone) for request in _requested_topics(call, context)]
    cluster = DescribedCluster(
        context.metadata_cache.brokers or [context.broker],
        context.cluster_id,
        context.broker.node_id,
        fields.ON_CLUSTER if call.get("include_cluster_authorized_operations") else fields.NOT_REQUESTED,
    )
    return [encode_response(call.request, cluster, topics)]


def _zone_with_brokers(zone: str, context: ClusterContext) -> str:
    """Returns an empty string for a zone without brokers: responses are cached by zone, and clients choose its name."""
    return zone if any(broker.zone == zone for broker in context.metadata_cache.brokers) else ""


def _requested_topics(call: Call, context: ClusterContext) -> Sequence[tuple[str | None, UUID | None]]:
    topics = call.body.topics
    if topics is None or (call.version == 0 and not topics):
        return [(name, None) for name in sorted(context.metadata_cache.topics)]
    return [_named(topic.name, getattr(topic, "topic_id", None)) for topic in topics]


def _named(name: str | None, topic_id: UUID | None) -> tuple[str | None, UUID | None]:
    """Removes the empty name that Java clients send with a topic id."""
    return (None if topic_id is not None and not name else name), topic_id


async def _encoded_topic(
    request: tuple[str | None, UUID | None], call: Call, context: ClusterContext, zone: str
) -> bytes:
    name, topic_id = request
    try:
        if name is None:
            name = await context.metadata_cache.name_of_id(topic_id.hex if topic_id else "")
            topic = await context.metadata_cache.topic(name)
        else:
            topic = await _find_or_create(name, call, context)
    except LakestreamError as error:
        code = Code.UNKNOWN_TOPIC_ID if name is None and isinstance(error, Missing) else code_of(error)
        shown_name = name if name is not None or call.version >= NULL_NAMES_FROM else ""
        return encode_topic(DescribedTopic(code, shown_name, topic_id), call.version)
    operations = fields.ON_TOPIC if call.get("include_topic_authorized_operations") else fields.NOT_REQUESTED
    cached = context.metadata_cache.derived
    key = (name, topic.topic_id, call.version, operations, zone)
    if (piece := cached.get(key)) is None:
        near = placement.in_zone(context.metadata_cache.brokers or [context.broker], zone)
        leaders = [_leader(topic, number, near) for number in range(topic.partition_count)]
        described = DescribedTopic(Code.NONE, name, UUID(hex=topic.topic_id), leaders, operations)
        piece = cached[key] = encode_topic(described, call.version)
    return piece


async def _find_or_create(name: str, call: Call, context: ClusterContext) -> Topic:
    try:
        check_topic_name(name)
        return await context.metadata_cache.topic(name)
    except Missing:
        if not (call.get("allow_auto_topic_creation", True) and context.settings.auto_create_topics):
            raise
    return await _create(name, context, context.settings.default_partitions)


async def _create(name: str, context: ClusterContext, partition_count: int) -> Topic:
    """Creates a topic, or returns it if a concurrent request has created it."""
    try:
        topic = await context.topics.create(name, Topic(context.ids.new(), partition_count))
    except Conflict:
        topic = await context.topics.get(name)
        context.metadata_cache.remember_topic(name, topic)
        return topic
    context.metadata_cache.remember_topic(name, topic)
    await context.on_topic_created(name, topic.topic_id, topic.settings)
    return topic


def describe_partition(topic: Topic, number: int, near: Sequence[Broker]) -> dict[str, Any]:
    leader = _leader(topic, number, near)
    return {
        "error_code": Code.NONE,
        "partition_index": number,
        "leader_id": leader,
        "leader_epoch": 0,
        "replica_nodes": [leader],
        "isr_nodes": [leader],
        "offline_replicas": [],
    }


def _leader(topic: Topic, number: int, near: Sequence[Broker]) -> int:
    return placement.chosen(f"{topic.topic_id}/{number}", near).node_id
