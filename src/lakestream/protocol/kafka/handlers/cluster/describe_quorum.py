"""DescribeQuorum (key 55), v0-2.

There is no quorum and no metadata log: the metadata store replaces them. For tools that print it, all live brokers are
voters at the end of an empty log, and the broker that responds is the leader.

Only `__cluster_metadata`, partition 0, is described.
v1 fetch times (not known: -1) · v2 error messages, nodes and their listeners
"""

from typing import Any, Final

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import ClusterContext

METADATA_LOG: Final = "__cluster_metadata"
LISTENER: Final = "PLAINTEXT"


@handles(55, versions=range(0, 3))
async def describe_quorum(call: Call, context: ClusterContext) -> Body:
    return {
        "error_code": Code.NONE,
        "topics": [
            {
                "topic_name": topic.topic_name,
                "partitions": [_partition(topic.topic_name, p.partition_index, context) for p in topic.partitions],
            }
            for topic in call.body.topics
        ],
        "nodes": [
            {
                "node_id": broker.node_id,
                "listeners": [{"name": LISTENER, "host": broker.host, "port": broker.port}],
            }
            for broker in context.metadata_cache.brokers or [context.broker]
        ],
    }


def _partition(name: str, number: int, context: ClusterContext) -> dict[str, Any]:
    if (name, number) != (METADATA_LOG, 0):
        return {
            "partition_index": number,
            "error_code": Code.UNKNOWN_TOPIC_OR_PARTITION,
            "error_message": f"only {METADATA_LOG}, partition 0, can be described",
            "leader_id": -1,
            "leader_epoch": -1,
            "high_watermark": -1,
        }
    return {
        "partition_index": number,
        "error_code": Code.NONE,
        "leader_id": context.broker.node_id,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [
            {"replica_id": broker.node_id, "log_end_offset": 0}
            for broker in context.metadata_cache.brokers or [context.broker]
        ],
    }
