"""DeleteRecords (key 21), v0-2.

Moves the log start offset of partitions forward: no broker serves records below it any more. -1 means the end of the
log. No data is rewritten, and rows in the table are not deleted.

An offset beyond the end is out of range (1); one below the start changes nothing. As in Kafka, the request is rejected
for a topic that is only compacted (44).
v2 flexible
"""

from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.coordination import topic_config
from lakestream.errors import LakestreamError, OutOfRange
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import RecordsContext

LOG_END: Final = -1


@handles(21, versions=range(0, 3))
async def delete_records(call: Call, context: RecordsContext) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await gather_limited(_partition(topic.name, p, context) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _partition(name: str, request: Any, context: RecordsContext) -> dict[str, Any]:
    try:
        low, code = await _delete(name, request, context), Code.NONE
    except LakestreamError as error:
        low, code = -1, code_of(error)
    return {"partition_index": request.partition_index, "low_watermark": low, "error_code": code}


async def _delete(name: str, request: Any, context: RecordsContext) -> int:
    partition = await context.metadata_cache.partition(name, request.partition_index)
    settings = topic_config.read((await context.metadata_cache.topic(name)).settings)
    if settings.compacted and not settings.expires:
        raise KafkaError(Code.POLICY_VIOLATION, f"topic {name} is compacted: records are deleted by key, not by offset")
    offset = request.offset
    if offset == LOG_END:
        offset = (await context.log.bounds(partition)).end
    if offset < 0:
        raise OutOfRange(f"offset {offset} of {name}-{request.partition_index}: give 0 or more, or -1 for the end")
    return await context.log.delete_before(partition, offset)
