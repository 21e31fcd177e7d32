"""OffsetFetch (key 9), v1-10.

Returns the committed offsets of groups, of the requested partitions or of all that have any. Read from the store, so
that they contain all commits that any broker has acknowledged.

A partition without an offset, and a group that does not exist, has offset -1 and no error. A client that requires
stable offsets has to retry (88) partitions with offsets in an open transaction.
From v9 on members of the consumer protocol send their member id (25) and their epoch, which must be the newest (113).
v2 null: all topics · v5 leader epoch · v6 flexible · v7 require stable
v8 several groups · v9 member id and epoch · v10 topic ids
"""

from collections.abc import Mapping, Set
from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import (
    NamedPartition,
    group_code,
    partitions_of,
    topic_fields,
    topic_of,
)
from lakestream.protocol.kafka.services import GroupsContext

ERROR_FROM: Final = 2
"""Before this version the response has error codes only per partition."""
SEVERAL_FROM: Final = 8
IDS_FROM: Final = 10
NONE: Final = Committed(-1, -1, "", -1, -1)


@handles(9, versions=range(1, 11))
async def offset_fetch(call: Call, context: GroupsContext) -> Body:
    if call.version >= SEVERAL_FROM:
        return {"groups": [await _group(group, call, context) for group in call.body.groups]}
    return await _group(call.body, call, context)


async def _group(request: Any, call: Call, context: GroupsContext) -> dict[str, Any]:
    version = call.version
    try:
        unstable: Set[PartitionId] = frozenset()
        if call.get("require_stable", False):  # read first, so that the offsets contain all that is no longer pending
            unstable = await context.transactions.pending(request.group_id)
        if (refusal := await _reader_refusal(request, context)) is not None:
            raise GroupRequestFailed(
                refusal, f"{request.member_id} is not allowed to read offsets of group {request.group_id}"
            )
        offsets = await context.groups.offsets(request.group_id)
    except LakestreamError as error:
        code = group_code(error)
        topics = _requested_topics(request, {}, {}, code) if version < ERROR_FROM else []
        return {"group_id": request.group_id, "error_code": code, "topics": topics}
    if request.topics is None:
        topics = _all_topics({**dict.fromkeys(sorted(unstable), NONE), **offsets}, unstable, version, context)
    else:
        names = (
            NamedPartition(topic_of(topic), number) for topic in request.topics for number in topic.partition_indexes
        )
        resolved = await partitions_of(names, context)
        # The name of a missing topic is no error: the topic has no offsets.
        codes = dict(resolved.unknown) if version >= IDS_FROM else {}
        codes |= {named: Code.UNSTABLE_OFFSET_COMMIT for named, one in resolved.existing.items() if one in unstable}
        topics = _requested_topics(
            request, {named: offsets.get(one, NONE) for named, one in resolved.existing.items()}, codes, Code.NONE
        )
    return {"group_id": request.group_id, "error_code": Code.NONE, "topics": topics}


async def _reader_refusal(request: Any, context: GroupsContext) -> GroupError | None:
    member_id = getattr(request, "member_id", None)
    epoch = getattr(request, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return None  # not a member, or a member that does not send its id
    return await context.groups.check_offset_fetch(request.group_id, member_id or "", epoch)


def _requested_topics(
    request: Any, offsets: Mapping[NamedPartition, Committed], codes: Mapping[NamedPartition, Code], code: Code
) -> list[dict[str, Any]]:
    topics = []
    for topic in request.topics:
        named = [NamedPartition(topic_of(topic), number) for number in topic.partition_indexes]
        partitions = [_partition(one.number, offsets.get(one, NONE), codes.get(one, code)) for one in named]
        topics.append({**topic_fields(topic_of(topic)), "partitions": partitions})
    return topics


def _all_topics(
    offsets: Mapping[PartitionId, Committed], unstable: Set[PartitionId], version: int, context: GroupsContext
) -> list[dict[str, Any]]:
    """Returns the offsets of all partitions, without those of deleted topics."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for partition, committed in offsets.items():
        name = context.metadata_cache.cached_name(partition.topic_id)
        if name is not None:
            entries = by_topic.setdefault(partition.topic_id, [])
            code = Code.UNSTABLE_OFFSET_COMMIT if partition in unstable else Code.NONE
            entries.append(_partition(partition.number, committed, code))
    return [
        {
            **topic_fields(
                UUID(hex=topic_id) if version >= IDS_FROM else context.metadata_cache.cached_name(topic_id) or ""
            ),
            "partitions": partitions,
        }
        for topic_id, partitions in by_topic.items()
    ]


def _partition(number: int, committed: Committed, code: Code) -> dict[str, Any]:
    if code != Code.NONE:
        committed = NONE
    return {
        "partition_index": number,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
