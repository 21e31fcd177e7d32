"""CreateTopics (key 19), v2-7.

Creates topics. The storage replicates, so a replication factor has no effect; it may be -1, or 1 to 3 (with more
brokers, to their number). Replica assignments must name live brokers; they only set the number of partitions.

v4 default partitions and replication (-1) · v5 flexible, configs in the response · v7 topic id
"""

from collections import Counter
from collections.abc import Collection
from typing import Any
from uuid import UUID

from lakestream.coordination import topic_config
from lakestream.errors import Conflict, LakestreamError, Misconfigured, Missing
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.fields import check_topic_name
from lakestream.protocol.kafka.handlers.topics.shared import check_assignments, check_replication_factor
from lakestream.protocol.kafka.services import TopicsContext


@handles(19, versions=range(2, 8))
async def create_topics(call: Call, context: TopicsContext) -> Body:
    times = Counter(request.name for request in call.body.topics)
    return {
        "topics": [
            await _response(request, times[request.name] > 1, call.body.validate_only, context)
            for request in call.body.topics
        ]
    }


async def _response(request: Any, duplicate: bool, validate_only: bool, context: TopicsContext) -> dict[str, Any]:
    try:
        if duplicate:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {request.name} is named twice in one request")
        topic = _new_topic(request, context)
        if validate_only:
            await _check_absent(request.name, context)
        else:
            await context.topics.create(request.name, topic)
            context.metadata_cache.remember_topic(request.name, topic)
            await context.on_topic_created(request.name, topic.topic_id, topic.settings)
    except Conflict as error:
        return {"name": request.name, "error_code": Code.TOPIC_ALREADY_EXISTS, "error_message": error_message(error)}
    except LakestreamError as error:
        return {"name": request.name, "error_code": code_of(error), "error_message": error_message(error)}
    return {
        "name": request.name,
        "topic_id": None if validate_only else UUID(hex=topic.topic_id),
        "error_code": Code.NONE,
        "num_partitions": topic.partition_count,
        "replication_factor": 1,
        "configs": [
            {
                "name": setting.name,
                "value": topic.settings.get(setting.name, setting.default),
                "read_only": False,
                "config_source": 1 if setting.name in topic.settings else 5,
                "is_sensitive": False,
            }
            for setting in topic_config.SETTINGS.values()
        ],
    }


def _new_topic(request: Any, context: TopicsContext) -> Topic:
    check_topic_name(request.name)
    brokers = context.metadata_cache.brokers or [context.broker]
    if request.assignments:
        _check_assignments(request, {broker.node_id for broker in brokers})
        count = len(request.assignments)
    else:
        check_replication_factor(request.replication_factor, len(brokers))
        count = context.settings.default_partitions if request.num_partitions == -1 else request.num_partitions
    if not 0 < count <= context.settings.partitions_max:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{count} partitions: 1 to {context.settings.partitions_max} are possible"
        )
    chosen = topic_config.with_current_names(
        {config.name: config.value for config in request.configs if config.value is not None}
    )
    try:
        topic_config.check(chosen, context.settings.profiles, is_new=True)
    except Misconfigured as error:
        raise KafkaError(Code.INVALID_CONFIG, str(error)) from error
    return Topic(context.ids.new(), count, chosen)


def _check_assignments(request: Any, node_ids: Collection[int]) -> None:
    for value, name in ((request.replication_factor, "replication factor"), (request.num_partitions, "numPartitions")):
        if value != -1:
            raise KafkaError(
                Code.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    times = Counter(assignment.partition_index for assignment in request.assignments)
    ((partition, most),) = times.most_common(1)
    if most > 1:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"Found multiple manual partition assignments for partition {partition}",
        )
    check_assignments([assignment.broker_ids for assignment in request.assignments], node_ids)
    if sorted(times) != list(range(len(times))):
        raise KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence")


async def _check_absent(name: str, context: TopicsContext) -> None:
    try:
        await context.topics.get(name)
    except Missing:
        return
    raise Conflict(f"Topic '{name}' already exists.")
