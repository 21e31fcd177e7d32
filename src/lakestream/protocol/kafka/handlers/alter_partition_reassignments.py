"""AlterPartitionReassignments (key 45), v0-1.

Nothing can be moved: no broker owns a partition. A target that names just the broker that Metadata names now is taken
and changes nothing; any other is refused (39), since it would not come true. There is nothing to cancel (85).

v1 whether the replication factor may change
"""

from typing import Any

from lakestream.coordination import placement
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.names import zone_of
from lakestream.protocol.kafka.services import Services


@handles(45, versions=range(0, 2))
async def alter_partition_reassignments(call: Call, services: Services) -> Body:
    zone = zone_of(call.request.client_id)
    return {
        "allow_replication_factor_change": call.get("allow_replication_factor_change", True),
        "error_code": Code.NONE,
        "responses": [
            {"name": topic.name, "partitions": [await _answer(topic.name, p, zone, services) for p in topic.partitions]}
            for topic in call.body.topics
        ],
    }


async def _answer(name: str, wanted: Any, zone: str, services: Services) -> dict[str, Any]:
    try:
        await _check(name, wanted, zone, services)
    except LakestreamError as error:
        return {
            "partition_index": wanted.partition_index,
            "error_code": code_of(error),
            "error_message": describe(error),
        }
    return {"partition_index": wanted.partition_index, "error_code": Code.NONE}


async def _check(name: str, wanted: Any, zone: str, services: Services) -> None:
    partition = await services.view.partition(name, wanted.partition_index)
    if wanted.replicas is None:
        raise KafkaError(Code.NO_REASSIGNMENT_IN_PROGRESS, "no partition is ever being moved")
    near = placement.near(services.view.brokers or [services.me], zone)
    if list(wanted.replicas) != [placement.chosen(str(partition), near).node_id]:
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT,
            "partitions cannot be moved: every broker serves every partition, and the storage has its own copies",
        )
