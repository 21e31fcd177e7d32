"""What the handlers of groups share: which code a refusal becomes, and topics by name or by id."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from lakestream.coordination.groups.refusals import Refusal, Refused
from lakestream.errors import LakestreamError, Missing, Unavailable
from lakestream.metadata.groups import GroupRecord, State
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code, code_of
from lakestream.protocol.kafka.services import Services

CLASSIC: Final = "classic"
STATE_NAMES: Final = {
    State.EMPTY: "Empty",
    State.PREPARING: "PreparingRebalance",
    State.COMPLETING: "CompletingRebalance",
    State.STABLE: "Stable",
    State.DEAD: "Dead",
}
_MILLISECOND: Final = timedelta(milliseconds=1)


def refusal_code(refusal: Refusal | None) -> Code:
    return Code.NONE if refusal is None else Code[refusal.name]


def group_code(error: LakestreamError) -> Code:
    """Members do not retry what producers retry: they look for the coordinator anew, and ask again."""
    if isinstance(error, Refused):
        return refusal_code(error.refusal)
    return Code.COORDINATOR_NOT_AVAILABLE if isinstance(error, Unavailable) else code_of(error)


def milliseconds(duration: timedelta) -> int:
    return duration // _MILLISECOND


def state_name(record: GroupRecord) -> str:
    return STATE_NAMES[record.state]


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
