"""AlterReplicaLogDirs (key 34), v1-2.

Replicas cannot be moved: a broker has one virtual directory. Any other is unknown (57). A partition that this broker
lists in that directory is in it already, so a request for it succeeds and changes nothing; one that it does not list is
rejected (9).

v2 flexible
"""

from typing import Any

from lakestream.coordination import placement
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.handlers.cluster.describe_log_dirs import LOG_DIR
from lakestream.protocol.kafka.services import ClusterContext


@handles(34, versions=range(1, 3))
async def alter_replica_log_dirs(call: Call, context: ClusterContext) -> Body:
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in call.body.dirs:
        for topic in directory.topics:
            results.setdefault(topic.name, []).extend(
                [
                    {"partition_index": number, "error_code": await _code(directory.path, topic.name, number, context)}
                    for number in topic.partitions
                ]
            )
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}


async def _code(path: str, name: str, number: int, context: ClusterContext) -> Code:
    if path != LOG_DIR:
        return Code.LOG_DIR_NOT_FOUND
    try:
        partition = await context.metadata_cache.partition(name, number)
    except LakestreamError as error:
        return code_of(error)
    leader = placement.chosen(str(partition), context.metadata_cache.brokers or [context.broker])
    return Code.NONE if leader.node_id == context.broker.node_id else Code.REPLICA_NOT_AVAILABLE
