"""ListOffsets (key 2), v1-11.

Finds the offset for a timestamp, or one end of the log. Always read from the store, never from a cache.

-1 latest (last stable offset for read_committed) · -2 earliest · -3 of the newest timestamp
-4 earliest local: the log start, as for a broker without tiered storage · -5, -6 of tiered storage: none
A timestamp returns the first record whose timestamp is not lower; -1 if there is none.
v2 isolation level · v4 leader epoch · v6 flexible · v7 -3 · v8 -4 · v9 -5 · v10 timeout · v11 -6
"""

from typing import Any, Final

from lakestream.aio.gather import gather_limited
from lakestream.data.log.offset_lookup import TimestampOffset
from lakestream.errors import LakestreamError
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_for_readers
from lakestream.protocol.kafka.services import RecordsContext

READ_COMMITTED: Final = 1
LATEST, EARLIEST, NEWEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NOT_FOUND: Final = TimestampOffset(-1, -1)


@handles(2, versions=range(1, 12))
async def list_offsets(call: Call, context: RecordsContext) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await gather_limited(_partition(topic.name, p, call, context) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _partition(name: str, request: Any, call: Call, context: RecordsContext) -> dict[str, Any]:
    partition = None
    try:
        partition = await context.metadata_cache.partition(name, request.partition_index)
        result = await _find(partition, request.timestamp, call.get("isolation_level", 0), context)
    except LakestreamError as error:
        if partition is not None:
            context.read_errors.note(partition, -1, error)
        code = code_for_readers(error)
        return {"partition_index": request.partition_index, "error_code": code, "timestamp": -1, "offset": -1}
    return {
        "partition_index": request.partition_index,
        "error_code": Code.NONE,
        "timestamp": result.timestamp,
        "offset": result.offset,
        "leader_epoch": 0 if result.offset >= 0 else -1,
    }


async def _find(partition: PartitionId, timestamp: int, isolation: int, context: RecordsContext) -> TimestampOffset:
    if timestamp in (LATEST_TIERED, PENDING_UPLOAD):
        return NOT_FOUND
    bounds = await context.log.bounds(partition)
    if timestamp == LATEST:
        return TimestampOffset(-1, bounds.stable if isolation == READ_COMMITTED else bounds.end)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return TimestampOffset(-1, bounds.start)
    if timestamp == NEWEST_TIME:
        return await context.log.newest_time(partition) or NOT_FOUND
    return await context.log.first_at(partition, timestamp) or NOT_FOUND
