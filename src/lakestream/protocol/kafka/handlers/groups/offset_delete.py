"""OffsetDelete (key 47), v0.

Deletes committed offsets of a group, per partition.

Rejected for topics that members of the group are subscribed to (86), and for a group whose members have an unknown
subscription (68).
"""

from typing import Any

from lakestream.coordination.groups.consumer_protocol import subscribed_topics
from lakestream.coordination.groups.errors import GroupError
from lakestream.coordination.groups.offset_rules import offset_delete_error
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import AnyGroupRecord
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import NamedPartition, group_code, partitions_of, refusal_code
from lakestream.protocol.kafka.services import GroupsContext


@handles(47, versions=range(0, 1))
async def offset_delete(call: Call, context: GroupsContext) -> Body:
    name = call.body.group_id
    try:
        record = await context.groups.describe(name)
        refusal = GroupError.GROUP_ID_NOT_FOUND if record is None else offset_delete_error(record)
        if record is None or refusal is not None:
            return {"error_code": refusal_code(refusal), "topics": []}
        return {"error_code": Code.NONE, "topics": await _delete(name, record, call.body.topics, context)}
    except LakestreamError as error:
        return {"error_code": group_code(error), "topics": []}


async def _delete(name: str, record: AnyGroupRecord, topics: Any, context: GroupsContext) -> list[dict[str, Any]]:
    subscribed = subscribed_topics(record) or frozenset()
    named = [NamedPartition(topic.name, one.partition_index) for topic in topics for one in topic.partitions]
    resolved = await partitions_of([one for one in named if one.topic not in subscribed], context)
    await context.groups.remove_offsets(name, resolved.existing.values())

    def code(one: NamedPartition) -> Code:
        return Code.GROUP_SUBSCRIBED_TO_TOPIC if one.topic in subscribed else resolved.unknown.get(one, Code.NONE)

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
