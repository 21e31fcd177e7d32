"""TxnOffsetCommit (key 28), v0-5.

How far a group has read, committed with a transaction or not at all. Asked of the group's coordinator, which checks
that the member may commit; the offsets wait in the transaction's record, and become the group's when it commits.

Members are checked as in OffsetCommit, and once more after the offsets are part of the transaction: whoever has the
group then, and reads its offsets with require stable, sees that they wait. Clients of old do not say who they are, and
may commit. From v5 on the transaction begins with this, where it has not begun; before, the group must have been added
to it (else 48, or 120).
v2 leader epoch · v3 flexible, member, generation, instance id · v4 transaction abortable (120)
v5 no AddOffsetsToTxn before
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from lakestream.coordination.groups.offsets import Committer
from lakestream.coordination.groups.refusals import Refused
from lakestream.coordination.transactions.machine import CLASSIC, IMPLICIT, TooLarge
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.metadata.transactions import PendingOffset
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import METADATA_BYTES_MAX, NamedPartition, group_code, partitions_of, refusal_code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id, identity, transaction_code

ABORTABLE_FROM_VERSION: Final = 4
IMPLICIT_FROM_VERSION: Final = 5


@handles(28, versions=range(0, 6))
async def txn_offset_commit(call: Call, services: Services) -> Body:
    found = await partitions_of((named for named, _ in _named(call.body)), services)
    codes: dict[NamedPartition, Code] = dict(found.unknown)
    wanted: dict[PartitionId, Committed] = {}
    for named, asked in _named(call.body):
        if named not in found.known:
            continue
        if len((asked.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            codes[named] = Code.OFFSET_METADATA_TOO_LARGE
        else:
            wanted[found.known[named]] = _committed(asked, call, services.clock.now_ms())
    code = await _answered(call, wanted, services)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": one.partition_index,
                        "error_code": codes.get(NamedPartition(topic.name, one.partition_index), code),
                    }
                    for one in topic.partitions
                ],
            }
            for topic in call.body.topics
        ]
    }


def _named(body: Any) -> Iterator[tuple[NamedPartition, Any]]:
    for topic in body.topics:
        for one in topic.partitions:
            yield NamedPartition(topic.name, one.partition_index), one


def _committed(asked: Any, call: Call, now_ms: int) -> Committed:
    return Committed(
        asked.committed_offset,
        getattr(asked, "committed_leader_epoch", -1),
        asked.committed_metadata or "",
        now_ms,
        call.get("generation_id", -1),
    )


async def _answered(call: Call, wanted: dict[PartitionId, Committed], services: Services) -> Code:
    try:
        return await _commit(call, wanted, services)
    except Refused as refusal:
        return group_code(refusal)
    except TooLarge:
        return Code.INVALID_COMMIT_OFFSET_SIZE
    except LakestreamError as error:
        return transaction_code(error, knows_fenced=False, knows_abortable=call.version >= ABORTABLE_FROM_VERSION)


async def _commit(call: Call, wanted: dict[PartitionId, Committed], services: Services) -> Code:
    body, groups = call.body, services.groups
    transactional_id = checked_id(body.transactional_id)
    who = Committer(call.get("member_id", ""), call.get("group_instance_id"), call.get("generation_id", -1))
    if (refusal := await groups.check_commit(body.group_id, who, certain=False)) is not None:
        return refusal_code(refusal)
    protocol = IMPLICIT if call.version >= IMPLICIT_FROM_VERSION else CLASSIC
    if protocol == CLASSIC:  # with the same epoch in both, they could become a part of the client's next transaction
        await call.connection.still_there()
    await services.transactions.hold_group(transactional_id, identity(body), body.group_id, protocol)
    asked = await groups.ask(body.group_id)
    versions = await groups.versions(body.group_id, wanted)
    pending = [PendingOffset(one, replace(new, asked=asked), versions[one]) for one, new in wanted.items()]
    await services.transactions.put_offsets(transactional_id, identity(body), body.group_id, pending, protocol)
    return refusal_code(await groups.check_commit(body.group_id, who, certain=True))
