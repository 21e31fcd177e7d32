"""ListOffsets (key 2), v1-11.

Finds the offset for a timestamp, or one end of the log. Always answered from the store as it is now.

-1 latest (last stable offset for readers of committed records) · -2 earliest · -3 of the newest timestamp
-4 earliest local: the log's start, as a broker without tiers says · -5, -6 of tiers: none
A time is answered with the first record whose timestamp is not before it; -1 if there is none.
v2 isolation level · v4 leader epoch · v6 flexible · v7 -3 · v8 -4 · v9 -5 · v10 timeout · v11 -6
"""

from typing import Any, Final

from lakestream.data.log.times import At
from lakestream.errors import LakestreamError
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, code_for_readers
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services

READ_COMMITTED: Final = 1
LATEST, EARLIEST, NEWEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NOWHERE: Final = At(-1, -1)


@handles(2, versions=range(1, 12))
async def list_offsets(call: Call, services: Services) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await answers(_answer(topic.name, p, call, services) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _answer(name: str, wanted: Any, call: Call, services: Services) -> dict[str, Any]:
    partition = None
    try:
        partition = await services.view.partition(name, wanted.partition_index)
        found = await _found(partition, wanted.timestamp, call.get("isolation_level", 0), services)
    except LakestreamError as error:
        if partition is not None:
            services.unreadable.note(partition, -1, error)
        code = code_for_readers(error)
        return {"partition_index": wanted.partition_index, "error_code": code, "timestamp": -1, "offset": -1}
    return {
        "partition_index": wanted.partition_index,
        "error_code": Code.NONE,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": 0 if found.offset >= 0 else -1,
    }


async def _found(partition: PartitionId, timestamp: int, isolation: int, services: Services) -> At:
    if timestamp in (LATEST_TIERED, PENDING_UPLOAD):
        return NOWHERE
    bounds = await services.log.bounds(partition)
    if timestamp == LATEST:
        return At(-1, bounds.stable if isolation == READ_COMMITTED else bounds.end)
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return At(-1, bounds.start)
    if timestamp == NEWEST_TIME:
        return await services.log.newest_time(partition) or NOWHERE
    return await services.log.first_at(partition, timestamp) or NOWHERE
