"""DeleteRecords (key 21), v0-2.

Moves the start of partitions forward: what lies before it is no longer served, by any broker. -1 is the end. No byte is
rewritten, and rows that are in the table stay there.

An offset beyond the end is out of range (1); one before the start changes nothing. A topic that is only compacted
refuses (44), as Kafka does.
v2 flexible
"""

from typing import Any, Final

from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError, OutOfRange
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.parallel import answers
from lakestream.protocol.kafka.services import Services

TO_THE_END: Final = -1


@handles(21, versions=range(0, 3))
async def delete_records(call: Call, services: Services) -> Body:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": await answers(_answer(topic.name, p, services) for p in topic.partitions),
            }
            for topic in call.body.topics
        ]
    }


async def _answer(name: str, wanted: Any, services: Services) -> dict[str, Any]:
    try:
        low, code = await _deleted(name, wanted, services), Code.NONE
    except LakestreamError as error:
        low, code = -1, code_of(error)
    return {"partition_index": wanted.partition_index, "low_watermark": low, "error_code": code}


async def _deleted(name: str, wanted: Any, services: Services) -> int:
    partition = await services.view.partition(name, wanted.partition_index)
    settings = topic_settings.read((await services.view.topic(name)).settings)
    if settings.compacted and not settings.expires:
        raise KafkaError(Code.POLICY_VIOLATION, f"topic {name} is compacted: its records go by key, not by offset")
    offset = wanted.offset
    if offset == TO_THE_END:
        offset = (await services.log.bounds(partition)).end
    if offset < 0:
        raise OutOfRange(f"offset {offset} of {name}-{wanted.partition_index}: give one from 0 on, or -1 for the end")
    return await services.log.delete_before(partition, offset)
