"""OffsetCommit (key 8), v2-10.

How far a group has read. Members commit with their id and generation; without either, anybody may as long as the group
has no members, and the group is made if there is none. Members of the new protocol have to be at their newest epoch
(113), and to speak v9 at least (35). Stored before it is answered, so that it outlives any broker.

Offsets belong to the topic's id: a topic that is made anew starts without any. What clients of old say about how long
to keep one (v2-4) is kept.
v6 leader epoch · v7 instance id · v8 flexible · v9 members of the new protocol · v10 topic ids
"""

from collections.abc import Iterator
from typing import Any, Final

from lakestream.coordination.groups.offsets import Committer
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import (
    METADATA_BYTES_MAX,
    NamedPartition,
    group_code,
    milliseconds,
    partitions_of,
    refusal_code,
    topic_fields,
    topic_of,
)
from lakestream.protocol.kafka.services import Services

MISSING_GROUPS_FROM: Final = 9


@handles(8, versions=range(2, 11))
async def offset_commit(call: Call, services: Services) -> Body:
    body = call.body
    found = await partitions_of((named for named, _ in _named(body)), services)
    codes: dict[NamedPartition, Code] = dict(found.unknown)
    wanted: dict[PartitionId, Committed] = {}
    for named, asked in _named(body):
        if named not in found.known:
            continue
        if len((asked.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            codes[named] = Code.OFFSET_METADATA_TOO_LARGE
        else:
            wanted[found.known[named]] = _committed(asked, call, services.clock.now_ms())
    code = await _commit(call, wanted, services)
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


def _committed(asked: Any, call: Call, now_ms: int) -> Committed:
    retention = call.get("retention_time")
    keep_ms = -1 if retention is None else milliseconds(retention)
    return Committed(
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        now_ms,
        call.body.generation_id_or_member_epoch,
        now_ms + keep_ms if keep_ms >= 0 else -1,
    )


async def _commit(call: Call, wanted: dict[PartitionId, Committed], services: Services) -> Code:
    body = call.body
    who = Committer(
        body.member_id,
        call.get("group_instance_id"),
        body.generation_id_or_member_epoch,
        call.version >= MISSING_GROUPS_FROM,
    )
    try:
        return refusal_code(await services.groups.commit(body.group_id, who, wanted))
    except LakestreamError as error:
        return group_code(error)
