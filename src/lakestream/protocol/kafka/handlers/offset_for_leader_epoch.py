"""OffsetForLeaderEpoch (key 23), v2-4.

Where an epoch of a partition ended, so that a consumer can find out whether what it read was cut off. Nothing is ever
cut off here and the epoch is always 0: it ends where the log ends.

A consumer that believes in a later epoch than 0 is told that we do not know it (75); the end of a later epoch is -1.
v3 replica id · v4 flexible
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services

EPOCH: Final = 0
"""Of every partition, for ever. One below it (-1) means: not said."""


@handles(23, versions=range(2, 5))
async def offset_for_leader_epoch(call: Call, services: Services) -> Body:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": await answers(_answer(topic.topic, p, services) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _answer(name: str, wanted: Any, services: Services) -> dict[str, Any]:
    answer = {"partition": wanted.partition, "error_code": Code.NONE, "leader_epoch": -1, "end_offset": -1}
    try:
        partition = await services.view.partition(name, wanted.partition)
        if wanted.current_leader_epoch > EPOCH:
            raise KafkaError(Code.UNKNOWN_LEADER_EPOCH, f"epoch {wanted.current_leader_epoch}: there is only {EPOCH}")
        if wanted.leader_epoch == EPOCH:
            answer |= {"leader_epoch": EPOCH, "end_offset": (await services.log.bounds(partition)).end}
    except LakestreamError as error:
        answer["error_code"] = code_of(error)
    return answer
