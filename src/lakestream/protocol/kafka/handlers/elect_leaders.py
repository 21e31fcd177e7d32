"""ElectLeaders (key 43), v0-2.

There are no leaders to elect: every broker serves every partition. For each partition that exists, an election is not
needed (84), which tools take for success. No partition named: all, and then only what was elected is told: nothing.

v1 election type, top-level error · v2 flexible
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services

PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED: Final = KafkaError(Code.ELECTION_NOT_NEEDED, "every broker serves every partition: there are no leaders")


@handles(43, versions=range(0, 3))
async def elect_leaders(call: Call, services: Services) -> Body:
    if call.get("election_type", PREFERRED) not in (PREFERRED, UNCLEAN):
        return {"error_code": Code.INVALID_REQUEST}
    return {
        "error_code": Code.NONE,
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [await _answer(topic.topic, n, services) for n in topic.partitions],
            }
            for topic in call.body.topic_partitions or ()
        ],
    }


async def _answer(name: str, number: int, services: Services) -> dict[str, Any]:
    refusal: LakestreamError = NOT_NEEDED
    try:
        await services.view.partition(name, number)
    except LakestreamError as error:
        refusal = error
    return {"partition_id": number, "error_code": code_of(refusal), "error_message": describe(refusal)}
