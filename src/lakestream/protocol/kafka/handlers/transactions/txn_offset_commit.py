"""TxnOffsetCommit (key 28), v0-5.

Commits the offsets of a group with a transaction. Sent to the group coordinator, which checks that the member may
commit; the offsets are pending in the transaction's record, and become the group's when the transaction commits.

Members are checked as in OffsetCommit, and once more after the offsets are part of the transaction and the group leads
to it: a new member that then reads the offsets with require_stable finds them pending. Old clients send no member id,
and may commit. From v5 on this begins the transaction if it has not begun; before, the group must have been added to it
(else 48, or 120).
v2 leader epoch · v3 flexible, member, generation, instance id · v4 transaction abortable (120)
v5 no AddOffsetsToTxn before
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from lakestream.coordination.groups.errors import GroupRequestFailed
from lakestream.coordination.groups.offset_rules import Committer
from lakestream.coordination.transactions.state_machine import CLASSIC, IMPLICIT, TransactionTooLarge
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Committed
from lakestream.metadata.transactions import PendingOffset
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import (
    METADATA_BYTES_MAX,
    NamedPartition,
    group_code,
    partitions_of,
    refusal_code,
)
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id, identity, transaction_code
from lakestream.protocol.kafka.services import TransactionsContext

ABORTABLE_FROM_VERSION: Final = 4
IMPLICIT_FROM_VERSION: Final = 5


@handles(28, versions=range(0, 6))
async def txn_offset_commit(call: Call, context: TransactionsContext) -> Body:
    resolved = await partitions_of((named for named, _ in _named(call.body)), context)
    codes: dict[NamedPartition, Code] = dict(resolved.unknown)
    offsets: dict[PartitionId, Committed] = {}
    for named, partition in _named(call.body):
        if named not in resolved.existing:
            continue
        if len((partition.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
            codes[named] = Code.OFFSET_METADATA_TOO_LARGE
        else:
            offsets[resolved.existing[named]] = _committed(partition, call, context.clock.now_ms())
    code = await _code(call, offsets, context)
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


def _committed(partition: Any, call: Call, now_ms: int) -> Committed:
    return Committed(
        partition.committed_offset,
        getattr(partition, "committed_leader_epoch", -1),
        partition.committed_metadata or "",
        now_ms,
        call.get("generation_id", -1),
    )


async def _code(call: Call, offsets: dict[PartitionId, Committed], context: TransactionsContext) -> Code:
    try:
        return await _commit(call, offsets, context)
    except GroupRequestFailed as refusal:
        return group_code(refusal)
    except TransactionTooLarge:
        return Code.INVALID_COMMIT_OFFSET_SIZE
    except LakestreamError as error:
        return transaction_code(error, has_fenced=False, has_abortable=call.version >= ABORTABLE_FROM_VERSION)


async def _commit(call: Call, offsets: dict[PartitionId, Committed], context: TransactionsContext) -> Code:
    body, groups = call.body, context.groups
    transactional_id = checked_id(body.transactional_id)
    committer = Committer(call.get("member_id", ""), call.get("group_instance_id"), call.get("generation_id", -1))
    if (refusal := await groups.check_commit(body.group_id, committer, confirmed=False)) is not None:
        return refusal_code(refusal)
    protocol = IMPLICIT if call.version >= IMPLICIT_FROM_VERSION else CLASSIC
    if protocol == CLASSIC:  # with the same epoch, a late request could become part of the client's next transaction
        await call.connection.check_connected()
    await context.transactions.ensure_group(transactional_id, identity(body), body.group_id, protocol)
    sequence = await groups.next_commit_sequence(body.group_id)
    versions = await groups.versions(body.group_id, offsets)
    pending = [PendingOffset(one, replace(new, sequence=sequence), versions[one]) for one, new in offsets.items()]
    await context.transactions.put_offsets(transactional_id, identity(body), body.group_id, pending, protocol)
    return refusal_code(await groups.check_commit(body.group_id, committer, confirmed=True))
