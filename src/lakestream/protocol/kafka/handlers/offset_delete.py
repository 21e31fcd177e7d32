"""OffsetDelete (key 47), v0.

An administrator takes back committed offsets of a group, partition by partition.

Not of topics that members of the group read (86), nor of a group whose members do not say what they read (68).
"""

from typing import Any

from lakestream.coordination.groups.offsets import deletion_refusal
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.subscription import subscribed_topics
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import AnyGroup
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import NamedPartition, group_code, partitions_of, refusal_code
from lakestream.protocol.kafka.services import Services


@handles(47, versions=range(0, 1))
async def offset_delete(call: Call, services: Services) -> Body:
    name = call.body.group_id
    try:
        record = await services.groups.describe(name)
        refusal = Refusal.GROUP_ID_NOT_FOUND if record is None else deletion_refusal(record)
        if record is None or refusal is not None:
            return {"error_code": refusal_code(refusal), "topics": []}
        return {"error_code": Code.NONE, "topics": await _deleted(name, record, call.body.topics, services)}
    except LakestreamError as error:
        return {"error_code": group_code(error), "topics": []}


async def _deleted(name: str, record: AnyGroup, topics: Any, services: Services) -> list[dict[str, Any]]:
    read = subscribed_topics(record) or frozenset()
    named = [NamedPartition(topic.name, one.partition_index) for topic in topics for one in topic.partitions]
    found = await partitions_of([one for one in named if one.topic not in read], services)
    await services.groups.remove_offsets(name, found.known.values())

    def code(one: NamedPartition) -> Code:
        return Code.GROUP_SUBSCRIBED_TO_TOPIC if one.topic in read else found.unknown.get(one, Code.NONE)

    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": one.partition_index,
                    "error_code": code(NamedPartition(topic.name, one.partition_index)),
                }
                for one in topic.partitions
            ],
        }
        for topic in topics
    ]
