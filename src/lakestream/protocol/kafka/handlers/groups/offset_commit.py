"""OffsetCommit (key 8), v2-10.

Commits the offsets of a group. Members commit with their id and generation; a request without either is accepted as
long as the group has no members, and creates the group if it does not exist. Members of the consumer protocol need
their newest epoch (113) and v9 or later (35). The offsets are stored before the response, so they outlive any broker.

Offsets belong to the topic's id: a recreated topic has none. The retention time of old clients (v2-4) is kept.
v6 leader epoch · v7 instance id · v8 flexible · v9 members of the new protocol · v10 topic ids
"""

from typing import Final

from lakestream.coordination.groups.offset_rules import Committer
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import Committed, bytes_of
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import (
    METADATA_BYTES_MAX,
    NamedPartition,
    group_code,
    milliseconds,
    partition_of,
    refusal_code,
    topic_fields,
    topic_of,
)
from lakestream.protocol.kafka.services import GroupsContext

EPOCHS_FROM: Final = 6
MISSING_GROUPS_FROM: Final = 9


@handles(8, versions=range(2, 11))
async def offset_commit(call: Call, context: GroupsContext) -> Body:
    named = [(topic_of(topic), topic.partitions) for topic in call.body.topics]
    codes: dict[NamedPartition, Code] = {}
    now_ms = context.clock.now_ms()
    generation, expires_ms = call.body.generation_id_or_member_epoch, _expires_ms(call, now_ms)
    has_epoch = call.version >= EPOCHS_FROM
    offsets: dict[PartitionId, Committed] = {}
    for topic, partitions in named:
        cached = context.metadata_cache.cached_topic(topic) if isinstance(topic, str) else None
        for one in partitions:
            number = one.partition_index
            if cached is not None and 0 <= number < cached.partition_count:
                partition = PartitionId(cached.topic_id, number)
            elif isinstance(found := await partition_of(NamedPartition(topic, number), context), Code):
                codes[NamedPartition(topic, number)] = found
                continue
            else:
                partition = found
            metadata = one.committed_metadata or ""
            if metadata and bytes_of(metadata) > METADATA_BYTES_MAX:
                codes[NamedPartition(topic, number)] = Code.OFFSET_METADATA_TOO_LARGE
                continue
            epoch = one.committed_leader_epoch if has_epoch else -1
            offsets[partition] = Committed(one.committed_offset, epoch, metadata, now_ms, generation, expires_ms)
    code = await _commit(call, offsets, context)
    return {
        "topics": [
            {
                **topic_fields(topic),
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": codes.get(NamedPartition(topic, one.partition_index), code) if codes else code,
                    }
                    for one in partitions
                ],
            }
            for topic, partitions in named
        ]
    }


def _expires_ms(call: Call, now_ms: int) -> int:
    retention = call.get("retention_time")
    keep_ms = -1 if retention is None else milliseconds(retention)
    return now_ms + keep_ms if keep_ms >= 0 else -1


async def _commit(call: Call, offsets: dict[PartitionId, Committed], context: GroupsContext) -> Code:
    body = call.body
    committer = Committer(
        body.member_id,
        call.get("group_instance_id"),
        body.generation_id_or_member_epoch,
        call.version >= MISSING_GROUPS_FROM,
    )
    try:
        return refusal_code(await context.groups.commit(body.group_id, committer, offsets))
    except LakestreamError as error:
        return group_code(error)
