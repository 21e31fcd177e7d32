"""AlterPartitionReassignments (key 45), v0-1.

Partitions cannot be reassigned, because no broker owns one. A target that is just the leader in the metadata is
accepted and changes nothing; any other is rejected (39), because it would have no effect. A request to cancel fails
(85).

v1 whether the replication factor may change
"""

from typing import Any

from lakestream.coordination import placement
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.fields import zone_of
from lakestream.protocol.kafka.services import TopicsContext


@handles(45, versions=range(0, 2))
async def alter_partition_reassignments(call: Call, context: TopicsContext) -> Body:
    zone = zone_of(call.request.client_id)
    return {
        "allow_replication_factor_change": call.get("allow_replication_factor_change", True),
        "error_code": Code.NONE,
        "responses": [
            {
                "name": topic.name,
                "partitions": [await _partition(topic.name, p, zone, context) for p in topic.partitions],
            }
            for topic in call.body.topics
        ],
    }


async def _partition(name: str, request: Any, zone: str, context: TopicsContext) -> dict[str, Any]:
    try:
        await _check(name, request, zone, context)
    except LakestreamError as error:
        return {
            "partition_index": request.partition_index,
            "error_code": code_of(error),
            "error_message": error_message(error),
        }
    return {"partition_index": request.partition_index, "error_code": Code.NONE}


async def _check(name: str, request: Any, zone: str, context: TopicsContext) -> None:
    partition = await context.metadata_cache.partition(name, request.partition_index)
    if request.replicas is None:
        raise KafkaError(
            Code.NO_REASSIGNMENT_IN_PROGRESS, "no reassignment is in progress: partitions cannot be reassigned"
        )
    near = placement.in_zone(context.metadata_cache.brokers or [context.broker], zone)
    if list(request.replicas) != [placement.chosen(str(partition), near).node_id]:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            "partitions cannot be reassigned: every broker serves every partition, and the storage replicates",
        )
