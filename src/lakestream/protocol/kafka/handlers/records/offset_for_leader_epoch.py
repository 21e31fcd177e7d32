"""OffsetForLeaderEpoch (key 23), v2-4.

Returns the end offset of a leader epoch, with which a consumer detects log truncation. Logs are never truncated here,
and the epoch is always 0: it ends at the end of the log.

A consumer with a current epoch above 0 gets UNKNOWN_LEADER_EPOCH (75); the end of a later epoch is -1.
v3 replica id · v4 flexible
"""

from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import RecordsContext

EPOCH: Final = 0
"""The leader epoch of every partition. In requests, -1 means that the consumer has none."""


@handles(23, versions=range(2, 5))
async def offset_for_leader_epoch(call: Call, context: RecordsContext) -> Body:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": await gather_limited(_partition(topic.topic, p, context) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _partition(name: str, request: Any, context: RecordsContext) -> dict[str, Any]:
    response = {"partition": request.partition, "error_code": Code.NONE, "leader_epoch": -1, "end_offset": -1}
    try:
        partition = await context.metadata_cache.partition(name, request.partition)
        if request.current_leader_epoch > EPOCH:
            raise KafkaError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {request.current_leader_epoch}: there is only {EPOCH}")
        if request.leader_epoch == EPOCH:
            response |= {"leader_epoch": EPOCH, "end_offset": (await context.log.bounds(partition)).end}
    except LakestreamError as error:
        response["error_code"] = code_of(error)
    return response
