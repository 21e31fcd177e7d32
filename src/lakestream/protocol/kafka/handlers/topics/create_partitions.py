"""CreatePartitions (key 37), v0-3.

Adds partitions to topics. The new logs are created before the count grows, so no client gets a partition without a log.
Replica assignments have no effect; they must name live brokers, and be one for each new partition.

v2 flexible · v3 quotas (not used)
"""

from collections import Counter
from typing import Any

from lakestream.errors import LakestreamError, Rejected
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.handlers.topics.shared import check_assignments
from lakestream.protocol.kafka.services import TopicsContext


@handles(37, versions=range(0, 4))
async def create_partitions(call: Call, context: TopicsContext) -> Body:
    times = Counter(request.name for request in call.body.topics)
    return {
        "results": [
            await _response(request, times[request.name] > 1, call.body.validate_only, context)
            for request in call.body.topics
        ]
    }


async def _response(request: Any, duplicate: bool, validate_only: bool, context: TopicsContext) -> dict[str, Any]:
    try:
        if duplicate:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {request.name} is named twice in one request")
        _check(request, await context.topics.get(request.name), context)
        if not validate_only:
            context.metadata_cache.remember_topic(request.name, await _grow(request, context))
    except LakestreamError as error:
        return {"name": request.name, "error_code": code_of(error), "error_message": error_message(error)}
    return {"name": request.name, "error_code": Code.NONE}


def _check(request: Any, topic: Topic, context: TopicsContext) -> None:
    partitions_max = context.settings.partitions_max
    if request.count <= topic.partition_count:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"topic {request.name} has {topic.partition_count} partitions; {request.count} would not be an increase",
        )
    if request.count > partitions_max:
        raise KafkaError(Code.INVALID_PARTITIONS, f"{request.count} partitions: {partitions_max} is the maximum")
    added = request.count - topic.partition_count
    if request.assignments is not None and len(request.assignments) != added:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"{len(request.assignments)} assignments for {added} new partitions: send none, or one for each",
        )
    brokers = context.metadata_cache.brokers or [context.broker]
    check_assignments([one.broker_ids for one in request.assignments or ()], {broker.node_id for broker in brokers})


async def _grow(request: Any, context: TopicsContext) -> Topic:
    try:
        return await context.topics.grow(request.name, request.count)
    except Rejected as error:  # another request has added partitions since
        raise KafkaError(Code.INVALID_PARTITIONS, str(error)) from error
