"""CreatePartitions (key 37), v0-3.

Gives topics more partitions; never fewer. The new logs are there before the count grows, so nobody meets a partition
without a log. Assignments by hand mean nothing here; only their number must fit.

v2 flexible · v3 quotas (not used)
"""

from collections import Counter
from typing import Any

from lakestream.errors import LakestreamError, Rejected
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services


@handles(37, versions=range(0, 4))
async def create_partitions(call: Call, services: Services) -> Body:
    times = Counter(wanted.name for wanted in call.body.topics)
    return {
        "results": [
            await _grown(wanted, times[wanted.name] > 1, call.body.validate_only, services)
            for wanted in call.body.topics
        ]
    }


async def _grown(wanted: Any, doubled: bool, validate_only: bool, services: Services) -> dict[str, Any]:
    try:
        if doubled:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {wanted.name} is named twice in one request")
        _check(wanted, await services.topics.get(wanted.name), services.settings.partitions_max)
        if not validate_only:
            services.view.learn(wanted.name, await _grow(wanted, services))
    except LakestreamError as error:
        return {"name": wanted.name, "error_code": code_of(error), "error_message": describe(error)}
    return {"name": wanted.name, "error_code": Code.NONE}


def _check(wanted: Any, topic: Topic, partitions_max: int) -> None:
    if wanted.count <= topic.partition_count:
        raise KafkaError(
            Code.INVALID_PARTITIONS,
            f"topic {wanted.name} has {topic.partition_count} partitions; {wanted.count} would not be an increase",
        )
    if wanted.count > partitions_max:
        raise KafkaError(Code.INVALID_PARTITIONS, f"{wanted.count} partitions: {partitions_max} are possible")
    added = wanted.count - topic.partition_count
    if wanted.assignments is not None and len(wanted.assignments) != added:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            f"{len(wanted.assignments)} assignments for {added} new partitions: give none, or one for each",
        )


async def _grow(wanted: Any, services: Services) -> Topic:
    try:
        return await services.topics.grow(wanted.name, wanted.count)
    except Rejected as error:  # somebody else was first
        raise KafkaError(Code.INVALID_PARTITIONS, str(error)) from error
