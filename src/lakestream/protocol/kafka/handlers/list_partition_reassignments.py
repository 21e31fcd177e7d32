"""ListPartitionReassignments (key 46), v0.

None, ever: no broker owns a partition, so none is being moved from one to another.
"""

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services


@handles(46, versions=range(0, 1))
async def list_partition_reassignments(call: Call, services: Services) -> Body:
    return {"error_code": Code.NONE, "topics": []}
