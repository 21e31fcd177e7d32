"""OffsetCommit (key 8), v2-10.

Commits the offsets of a group. Members commit with their id and generation; a request without either is accepted as
long as the group has no members, and creates the group if it does not exist. Members of the consumer protocol need
their newest epoch (113) and v9 or later (35). The offsets are stored before the response, so they outlive any broker.

Offsets belong to the topic's id: a recreated topic has none. The retention time of old clients (v2-4) is kept.
v6 leader epoch · v7 instance id · v8 flexible · v9 members of the new protocol · v10 topic ids
"""

from collections.abc import Iterator
from typing import Any, Final

from lakestream.coordination.groups.offset_rules import Committer
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import (
    METADATA_BYTES_MAX,
    NamedPartition,
    group_code,
    milliseconds,
    partitions_of,
    refusal_code,
    topic_fields,
    topic_of,
)
from lakestream.protocol.kafka.services import GroupsContext

MISSING_GROUPS_FROM: Final = 9


@handles(8, versions=range(2, 11))
async def offset_commit(call: Call, context: GroupsContext) -> Body:
    body = call.body
    resolved = await partitions_of((named for named, _ in _named(body)), context)
    codes: dict[NamedPartition, Code] = dict(resolved.unknown)
    offsets: dict[PartitionId, Committed] = {}
    for named, partition in _named(body):
        if named not in resolved.existing:
            continue
        if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            codes[named] = Code.OFFSET_METADATA_TOO_LARGE
        else:
            offsets[resolved.existing[named]] = _committed(partition, call, context.clock.now_ms())
    code = await _commit(call, offsets, context)
    return {
        "topics": [
            {
                **topic_fields(topic_of(topic)),
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": codes.get(NamedPartition(topic_of(topic), one.partition_index), code),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in body.topics
        ]
    }


def _named(body: Any) -> Iterator[tuple[NamedPartition, Any]]:
    for topic in body.topics:
        for one in topic.partitions:
            yield NamedPartition(topic_of(topic), one.partition_index), one


def _committed(partition: Any, call: Call, now_ms: int) -> Committed:
    retention = call.get("retention_time")
    keep_ms = -1 if retention is None else milliseconds(retention)
    return Committed(
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata or "",
        now_ms,
        call.body.generation_id_or_member_epoch,
        now_ms + keep_ms if keep_ms >= 0 else -1,
    )


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
