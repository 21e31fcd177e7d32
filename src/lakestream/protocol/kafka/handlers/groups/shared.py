"""Shared by the handlers of groups: error codes of refusals, and topics by name or by id."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from lakestream.coordination.groups import consumer_group
from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.group_records import AnyGroupRecord, GroupRecord, GroupState, Partitions, bytes_of
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import BrokerContext

CLASSIC, CONSUMER = "classic", "consumer"
STATE_NAMES: Final = {
    GroupState.EMPTY: "Empty",
    GroupState.PREPARING: "PreparingRebalance",
    GroupState.COMPLETING: "CompletingRebalance",
    GroupState.STABLE: "Stable",
    GroupState.DEAD: "Dead",
}
WORD_BYTES_MAX: Final = 1_000
"""Bytes of a name that a member sends: each is stored, and sent to other members, many times."""
METADATA_BYTES_MAX: Final = 4_096
"""Bytes of the metadata of a committed offset."""
_MILLISECOND: Final = timedelta(milliseconds=1)


def refusal_code(refusal: GroupError | None) -> Code:
    return Code.NONE if refusal is None else Code[refusal.name]


def group_code(error: LakestreamError) -> Code:
    """Returns the code for group members, which do not retry the codes that producers retry.

    On COORDINATOR_NOT_AVAILABLE they find the coordinator again and retry.
    """
    if isinstance(error, GroupRequestFailed):
        return refusal_code(error.error)
    return Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, Unavailable) else code_of(error)


def check_words(**words: str | None) -> None:
    for name, word in words.items():
        if word and bytes_of(word) > WORD_BYTES_MAX:
            raise KafkaError(Code.INVALID_REQUEST, f"{name} may have {WORD_BYTES_MAX} bytes, not {bytes_of(word)}")


def milliseconds(duration: timedelta) -> int:
    return duration // _MILLISECOND


def state_name(record: AnyGroupRecord) -> str:
    if isinstance(record, GroupRecord):
        return STATE_NAMES[record.state]
    if record.is_empty:
        return "Empty"
    if record.epoch > record.target_epoch:
        return "Assigning"
    return "Stable" if consumer_group.is_stable(record) else "Reconciling"


def assignment_body(partitions: Partitions) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": UUID(hex=topic_id), "partitions": numbers}
            for topic_id, numbers in _by_topic(partitions).items()
        ]
    }


def topic_partitions(partitions: Partitions, name_of: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Returns the partitions by topic, without deleted topics, which have no name."""
    return [
        {"topic_id": UUID(hex=topic_id), "topic_name": name, "partitions": numbers}
        for topic_id, numbers in _by_topic(partitions).items()
        if (name := name_of(topic_id)) is not None
    ]


def _by_topic(partitions: Partitions) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        numbers.setdefault(topic_id, []).append(number)
    return numbers


class NamedPartition(NamedTuple):
    """A partition of a request, by the name of its topic, or (from version 10 on) by the topic id."""

    topic: str | UUID | None
    number: int


class ResolvedPartitions(NamedTuple):
    """The partitions of one request, and the error codes of those that do not exist."""

    existing: dict[NamedPartition, PartitionId]
    unknown: dict[NamedPartition, Code]


async def partitions_of(names: Iterable[NamedPartition], context: BrokerContext) -> ResolvedPartitions:
    existing: dict[NamedPartition, PartitionId] = {}
    unknown: dict[NamedPartition, Code] = {}
    for named in names:
        found = await partition_of(named, context)
        if isinstance(found, Code):
            unknown[named] = found
        else:
            existing[named] = found
    return ResolvedPartitions(existing, unknown)


async def partition_of(named: NamedPartition, context: BrokerContext) -> PartitionId | Code:
    """Returns the partition, or the error code if it does not exist."""
    try:
        name = named.topic if isinstance(named.topic, str) else await _name_of(named.topic, context)
        return await context.metadata_cache.partition(name, named.number)
    except Missing:
        by_id = not isinstance(named.topic, str) and await _is_unknown(named.topic, context)
        return Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
    except LakestreamError as error:
        return group_code(error)


async def _name_of(topic_id: UUID | None, context: BrokerContext) -> str:
    return await context.metadata_cache.name_of_id(topic_id.hex if topic_id else "")


async def _is_unknown(topic_id: UUID | None, context: BrokerContext) -> bool:
    try:
        await _name_of(topic_id, context)
    except Missing:
        return True
    return False


def topic_of(body: Any) -> str | UUID | None:
    """Returns the name or the id of a topic in a request."""
    topic: str | UUID | None = body.name if hasattr(body, "name") else body.topic_id
    return topic


def topic_fields(topic: str | UUID | None) -> Mapping[str, Any]:
    return {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
