"""ListPartitionReassignments (key 46), v0.

Always returns an empty list: no broker owns a partition, so partitions are never reassigned.
"""

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import TopicsContext


@handles(46, versions=range(0, 1))
async def list_partition_reassignments(call: Call, context: TopicsContext) -> Body:
    return {"error_code": Code.NONE, "topics": []}
