"""ElectLeaders (key 43), v0-2.

There are no leaders to elect: every broker serves every partition. The code of each existing partition is
ELECTION_NOT_NEEDED (84), which tools treat as success. A request without partitions means all partitions; its response
lists only elected ones, so it is empty.

v1 election type, top-level error · v2 flexible
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import TopicsContext

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED: Final = KafkaError(Code.ELECTION_NOT_NEEDED, "every broker serves every partition: there are no leaders")


@handles(43, versions=range(0, 3))
async def elect_leaders(call: Call, context: TopicsContext) -> Body:
    if call.get("election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
        return {"error_code": Code.INVALID_REQUEST}
    return {
        "error_code": Code.NONE,
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [await _partition(topic.topic, n, context) for n in topic.partitions],
            }
            for topic in call.body.topic_partitions or ()
        ],
    }


async def _partition(name: str, number: int, context: TopicsContext) -> dict[str, Any]:
    result: LakestreamError = NOT_NEEDED
    try:
        await context.metadata_cache.partition(name, number)
    except LakestreamError as error:
        result = error
    return {"partition_id": number, "error_code": code_of(result), "error_message": error_message(result)}
