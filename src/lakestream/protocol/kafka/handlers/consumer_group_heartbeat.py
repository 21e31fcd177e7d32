"""ConsumerGroupHeartbeat (key 68), v0-1.

All that a member of the new protocol (KIP-848) says to its group: that it comes (epoch 0), lives, wants other topics,
has given partitions back, leaves (-1), or leaves for a while (-2, static members). It hears which partitions it has;
the coordinator decides that, by the assignor that most members ask for (`uniform`, `range`). What is null did not
change.

A heartbeat that changes nothing is answered from memory. The time to the next one is as long as there are members, up
to 5 s, and 0.5 s while it waits for others; the session is 45 s. A group of the classic protocol becomes one of the new
protocol when a member of it joins, and its members go on (KIP-848, migration).
v1 the member makes its id · v1 pattern of topics (RE2)
"""

from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.values import JOIN, LEAVE, LEAVE_FOR_A_WHILE, UNCHANGED_MS, Beat
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import Partitions
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.groups import assignment_body, check_words, group_code, milliseconds, refusal_code
from lakestream.protocol.kafka.services import Services

OWN_ID_FROM: Final = 1


@handles(68, versions=range(0, 2))
async def consumer_group_heartbeat(call: Call, services: Services) -> Body:
    try:
        _check(call)
        told = await services.groups.beat(call.body.group_id, _beat(call, services))
    except LakestreamError as error:
        return _refused(call, group_code(error), describe(error))
    beaten = told.beaten
    if beaten.refusal is not None:
        return _refused(call, refusal_code(beaten.refusal), f"the group has no member {beaten.member_id} any longer")
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "member_id": beaten.member_id,
        "member_epoch": beaten.epoch,
        "heartbeat_interval": told.next_ms,
        "assignment": None if beaten.assigned is None else assignment_body(beaten.assigned),
    }


def _refused(call: Call, code: Code, text: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": text,
        "member_id": call.body.member_id or None,
        "member_epoch": call.body.member_epoch,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def _check(call: Call) -> None:
    """What a request must have, whatever the group."""
    body, epoch = call.body, call.body.member_epoch
    if (call.version >= OWN_ID_FROM or epoch != JOIN) and not body.member_id:
        raise _invalid("a member must have an id")
    for name in ("group_id", "instance_id", "rack_id"):
        if getattr(body, name) == "":
            raise _invalid(f"{name} may not be empty")
    check_words(member_id=body.member_id, instance_id=body.instance_id, rack_id=body.rack_id)
    if milliseconds(body.rebalance_timeout) < UNCHANGED_MS:
        raise _invalid("no time is shorter than none (rebalance_timeout_ms)")
    if epoch < LEAVE_FOR_A_WHILE:
        raise _invalid(f"there is no epoch {epoch}")
    if epoch == LEAVE_FOR_A_WHILE and body.instance_id is None:
        raise _invalid("only a member with an instance id can leave for a while")
    if epoch == JOIN:
        if milliseconds(body.rebalance_timeout) == UNCHANGED_MS:
            raise _invalid("whoever joins has to say how long it takes to give partitions back (rebalance_timeout_ms)")
        if body.topic_partitions is None or body.topic_partitions:
            raise _invalid("whoever joins has no partitions: topic_partitions must be empty")
        if body.subscribed_topic_names is None and call.get("subscribed_topic_regex") is None:
            raise _invalid("whoever joins has to say what it subscribes to")


def _invalid(text: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, text)


def _beat(call: Call, services: Services) -> Beat:
    body, names = call.body, call.body.subscribed_topic_names
    leaves = body.member_epoch in (LEAVE, LEAVE_FOR_A_WHILE)
    return Beat(
        member_id=body.member_id or str(UUID(hex=services.ids.new())),
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack=body.rack_id,
        client_id=call.request.client_id or "",
        host=f"/{call.connection.address}",
        rebalance_ms=UNCHANGED_MS if leaves else milliseconds(body.rebalance_timeout),
        names=None if names is None else tuple(names),
        pattern=call.get("subscribed_topic_regex"),
        assignor=body.server_assignor,
        owned=_owned(body.topic_partitions),
    )


def _owned(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        PartitionId(topic.topic_id.hex if topic.topic_id else "", number)
        for topic in topics
        for number in topic.partitions
    )
