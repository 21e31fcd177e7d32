"""What the handlers of groups share: which code a refusal becomes, and topics by name or by id."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from lakestream.coordination.groups import consumer
from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.group_records import AnyGroup, GroupRecord, Partitions, State, bytes_of
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services

CLASSIC, CONSUMER = "classic", "consumer"
STATE_NAMES: Final = {
    State.EMPTY: "Empty",
    State.PREPARING: "PreparingRebalance",
    State.COMPLETING: "CompletingRebalance",
    State.STABLE: "Stable",
    State.DEAD: "Dead",
}
WORD_BYTES_MAX: Final = 1_000
METADATA_BYTES_MAX: Final = 4_096
"""Beside a committed offset."""
"""Of the names that a member gives itself and others: each is stored, and sent to others, many times."""
_MILLISECOND: Final = timedelta(milliseconds=1)


def refusal_code(refusal: Refusal | None) -> Code:
    return Code.NONE if refusal is None else Code[refusal.name]


def group_code(error: LakestreamError) -> Code:
    """Members do not retry what producers retry: they look for the coordinator anew, and ask again."""
    if isinstance(error, Refused):
        return refusal_code(error.refusal)
    return Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, Unavailable) else code_of(error)


def check_words(**words: str | None) -> None:
    for what, word in words.items():
        if word and bytes_of(word) > WORD_BYTES_MAX:
            raise KafkaError(Code.INVALID_REQUEST, f"{what} may have {WORD_BYTES_MAX} bytes, not {bytes_of(word)}")


def milliseconds(duration: timedelta) -> int:
    return duration // _MILLISECOND


def state_name(record: AnyGroup) -> str:
    if isinstance(record, GroupRecord):
        return STATE_NAMES[record.state]
    if record.is_empty:
        return "Empty"
    if record.epoch > record.target_epoch:
        return "Assigning"
    return "Stable" if consumer.is_stable(record) else "Reconciling"


def assignment_body(partitions: Partitions) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": UUID(hex=topic_id), "partitions": numbers}
            for topic_id, numbers in _by_topic(partitions).items()
        ]
    }


def topic_partitions(partitions: Partitions, name_of: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Without those of topics that are gone: they have no name."""
    return [
        {"topic_id": UUID(hex=topic_id), "topic_name": name, "partitions": numbers}
        for topic_id, numbers in _by_topic(partitions).items()
        if (name := name_of(topic_id)) is not None
    ]


def _by_topic(partitions: Partitions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        found.setdefault(topic_id, []).append(number)
    return found


class NamedPartition(NamedTuple):
    """A partition as a request names it: by the topic's name, or (from version 10 on) by its id."""

    topic: str | UUID | None
    number: int


class Wanted(NamedTuple):
    """The partitions of one request: which they are, and why others are none."""

    known: dict[NamedPartition, PartitionId]
    unknown: dict[NamedPartition, Code]


async def partitions_of(names: Iterable[NamedPartition], services: Services) -> Wanted:
    known: dict[NamedPartition, PartitionId] = {}
    unknown: dict[NamedPartition, Code] = {}
    for named in names:
        try:
            name = named.topic if isinstance(named.topic, str) else await _name_of(named.topic, services)
            known[named] = await services.view.partition(name, named.number)
        except Missing:
            by_id = not isinstance(named.topic, str) and await _is_gone(named.topic, services)
            unknown[named] = Code.UNKNOWN_TOPIC_ID if by_id else Code.UNKNOWN_TOPIC_OR_PARTITION
        except LakestreamError as error:
            unknown[named] = group_code(error)
    return Wanted(known, unknown)


async def _name_of(topic_id: UUID | None, services: Services) -> str:
    return await services.view.name_of_id(topic_id.hex if topic_id else "")


async def _is_gone(topic_id: UUID | None, services: Services) -> bool:
    try:
        await _name_of(topic_id, services)
    except Missing:
        return True
    return False


def topic_of(body: Any) -> str | UUID | None:
    """A topic of a request, which has a name or an id."""
    topic: str | UUID | None = body.name if hasattr(body, "name") else body.topic_id
    return topic


def topic_fields(topic: str | UUID | None) -> Mapping[str, Any]:
    return {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
