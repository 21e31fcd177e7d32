"""OffsetFetch (key 9), v1-10.

How far groups have read: the offsets that were committed last, of some partitions or of all that have any. Read from
the store, so that what any broker has acknowledged is in it.

A partition without one, and a group that does not exist, is answered with -1 and no error. Who requires stable offsets
is asked to come again (88) for those that a transaction holds which has not ended.
From v9 on a member of the new protocol says who it is: it has to be at its newest epoch (113), and a member (25).
v2 null: all topics · v5 leader epoch · v6 flexible · v7 require stable
v8 several groups · v9 member id and epoch · v10 topic ids
"""

from collections.abc import Mapping, Set
from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import NamedPartition, group_code, partitions_of, topic_fields, topic_of
from lakestream.protocol.kafka.services import Services

ERROR_FROM: Final = 2
"""Before, each partition has to say it."""
SEVERAL_FROM: Final = 8
IDS_FROM: Final = 10
NONE: Final = Committed(-1, -1, "", -1, -1)


@handles(9, versions=range(1, 11))
async def offset_fetch(call: Call, services: Services) -> Body:
    if call.version >= SEVERAL_FROM:
        return {"groups": [await _answer(group, call, services) for group in call.body.groups]}
    return await _answer(call.body, call, services)


async def _answer(wanted: Any, call: Call, services: Services) -> dict[str, Any]:
    version = call.version
    try:
        unstable: Set[PartitionId] = frozenset()
        if call.get("require_stable", False):  # before the offsets: what has ended by now is in them
            unstable = await services.transactions.pending(wanted.group_id)
        if (refusal := await _reader_refusal(wanted, services)) is not None:
            raise Refused(refusal, f"{wanted.member_id} may not read the offsets of group {wanted.group_id}")
        offsets = await services.groups.offsets(wanted.group_id)
    except LakestreamError as error:
        code = group_code(error)
        refused = _some(wanted, {}, {}, code) if version < ERROR_FROM else []
        return {"group_id": wanted.group_id, "error_code": code, "topics": refused}
    if wanted.topics is None:
        topics = _all({**dict.fromkeys(sorted(unstable), NONE), **offsets}, unstable, version, services)
    else:
        names = (
            NamedPartition(topic_of(topic), number) for topic in wanted.topics for number in topic.partition_indexes
        )
        found = await partitions_of(names, services)
        # By name, nothing is said of a topic that does not exist: it has no offsets.
        codes = dict(found.unknown) if version >= IDS_FROM else {}
        codes |= {named: Code.UNSTABLE_OFFSET_COMMIT for named, one in found.known.items() if one in unstable}
        topics = _some(wanted, {named: offsets.get(one, NONE) for named, one in found.known.items()}, codes, Code.NONE)
    return {"group_id": wanted.group_id, "error_code": Code.NONE, "topics": topics}


async def _reader_refusal(wanted: Any, services: Services) -> Refusal | None:
    member_id = getattr(wanted, "member_id", None)
    epoch = getattr(wanted, "member_epoch", -1)
    if member_id is None and epoch < 0:
        return None  # not a member, or not one that says so
    return await services.groups.check_reader(wanted.group_id, member_id or "", epoch)


def _some(
    wanted: Any, found: Mapping[NamedPartition, Committed], codes: Mapping[NamedPartition, Code], code: Code
) -> list[dict[str, Any]]:
    topics = []
    for topic in wanted.topics:
        named = [NamedPartition(topic_of(topic), number) for number in topic.partition_indexes]
        partitions = [_partition(one.number, found.get(one, NONE), codes.get(one, code)) for one in named]
        topics.append({**topic_fields(topic_of(topic)), "partitions": partitions})
    return topics


def _all(
    offsets: Mapping[PartitionId, Committed], unstable: Set[PartitionId], version: int, services: Services
) -> list[dict[str, Any]]:
    """Those of topics that are gone are nobody's."""
    by_topic: dict[str, list[dict[str, Any]]] = {}
    for partition, committed in offsets.items():
        name = services.view.name_of(partition.topic_id)
        if name is not None:
            answers = by_topic.setdefault(partition.topic_id, [])
            code = Code.UNSTABLE_OFFSET_COMMIT if partition in unstable else Code.NONE
            answers.append(_partition(partition.number, committed, code))
    return [
        {
            **topic_fields(UUID(hex=topic_id) if version >= IDS_FROM else services.view.name_of(topic_id) or ""),
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
