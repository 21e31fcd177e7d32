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
from lakestream.filed import Piece
from lakestream.metadata.brokers import Broker
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.metadata_answer import Described, DescribedTopic, topic_written, written
from lakestream.protocol.kafka.names import is_legal, zone_of
from lakestream.protocol.kafka.services import Services

NULL_NAMES_FROM = 12


@handles(3, versions=range(0, 14))
async def metadata(call: Call, services: Services) -> list[Piece]:
    zone = _known_zone(zone_of(call.request.client_id), services)
    topics = [await _described(wanted, call, services, zone) for wanted in _wanted(call, services)]
    cluster = Described(
        services.view.brokers or [services.me],
        services.cluster_id,
        services.me.node_id,
        authorized.ON_CLUSTER if call.get("include_cluster_authorized_operations") else authorized.NOT_GIVEN,
    )
    return [written(call.request, cluster, topics)]


def _known_zone(zone: str, services: Services) -> str:
    """A zone without brokers is none, whatever clients call it: answers are kept by zone."""
    return zone if any(broker.zone == zone for broker in services.view.brokers) else ""


def _wanted(call: Call, services: Services) -> Sequence[tuple[str | None, UUID | None]]:
    asked = call.body.topics
    if asked is None or (call.version == 0 and not asked):
        return [(name, None) for name in sorted(services.view.topics)]
    return [_named(topic.name, getattr(topic, "topic_id", None)) for topic in asked]


def _named(name: str | None, topic_id: UUID | None) -> tuple[str | None, UUID | None]:
    """Whoever asks by id need not name anything; Java says that with an empty name."""
    return (None if topic_id is not None and not name else name), topic_id


async def _described(wanted: tuple[str | None, UUID | None], call: Call, services: Services, zone: str) -> bytes:
    name, topic_id = wanted
    try:
        if name is None:
            name = await services.view.name_of_id(topic_id.hex if topic_id else "")
            topic = await services.view.topic(name)
        else:
            topic = await _found_or_made(name, call, services)
    except LakestreamError as error:
        code = Code.UNKNOWN_TOPIC_ID if name is None and isinstance(error, Missing) else code_of(error)
        said = name if name is not None or call.version >= NULL_NAMES_FROM else ""
        return topic_written(DescribedTopic(code, said, topic_id), call.version)
    operations = authorized.ON_TOPIC if call.get("include_topic_authorized_operations") else authorized.NOT_GIVEN
    kept = services.view.derived
    key = (name, topic.topic_id, call.version, operations, zone)
    if (piece := kept.get(key)) is None:
        near = placement.near(services.view.brokers or [services.me], zone)
        leaders = [_leader(topic, number, near) for number in range(topic.partition_count)]
        described = DescribedTopic(Code.NONE, name, UUID(hex=topic.topic_id), leaders, operations)
        piece = kept[key] = topic_written(described, call.version)
    return piece


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
    services.view.learn(name, topic)
    await services.topic_made(name, topic.topic_id, topic.settings)
    return topic


def partition_described(topic: Topic, number: int, near: Sequence[Broker]) -> dict[str, Any]:
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
