"""ConsumerGroupHeartbeat (key 68), v0-1.

The only request of members of the consumer protocol (KIP-848): it joins the group (epoch 0), keeps the session, changes
the subscription, releases partitions, leaves (-1), or leaves for a while (-2, static members). The response has the
member's partitions. The coordinator assigns them with the assignor that most members choose (`uniform`, `range`). A
field that is null has not changed.

A heartbeat without changes is answered from memory. The interval grows with the number of members, up to 5 s, and is
0.5 s while a member waits for partitions of other members; the session timeout is 45 s. Configs of the group or of its
coordinator replace them (IncrementalAlterConfigs). A classic group is upgraded when a member of the consumer protocol
joins, and its members stay (KIP-848, migration).
v1 the member generates its id · v1 regular expression of topics (RE2)
"""

from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.messages import JOIN, LEAVE, LEAVE_STATIC, UNCHANGED_MS, HeartbeatRequest
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import Partitions
from lakestream.model import PartitionId
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.groups.shared import (
    assignment_body,
    check_words,
    group_code,
    milliseconds,
    refusal_code,
)
from lakestream.protocol.kafka.services import GroupsContext

OWN_ID_FROM: Final = 1


@handles(68, versions=range(0, 2))
async def consumer_group_heartbeat(call: Call, context: GroupsContext) -> Body:
    try:
        _check(call)
        response = await context.groups.consumer_heartbeat(call.body.group_id, _request(call, context))
    except LakestreamError as error:
        return _error(call, group_code(error), error_message(error))
    result = response.result
    if result.error is not None:
        return _error(call, refusal_code(result.error), f"member {result.member_id} is no longer in the group")
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "member_id": result.member_id,
        "member_epoch": result.epoch,
        "heartbeat_interval": response.interval_ms,
        "assignment": None if result.assigned is None else assignment_body(result.assigned),
    }


def _error(call: Call, code: Code, text: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": text,
        "member_id": call.body.member_id or None,
        "member_epoch": call.body.member_epoch,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def _check(call: Call) -> None:
    """Checks the fields of a request that do not depend on the group."""
    body, epoch = call.body, call.body.member_epoch
    if (call.version >= OWN_ID_FROM or epoch != JOIN) and not body.member_id:
        raise _invalid("member_id must not be empty")
    for name in ("group_id", "instance_id", "rack_id"):
        if getattr(body, name) == "":
            raise _invalid(f"{name} must not be empty")
    check_words(member_id=body.member_id, instance_id=body.instance_id, rack_id=body.rack_id)
    if milliseconds(body.rebalance_timeout) < UNCHANGED_MS:
        raise _invalid("rebalance_timeout_ms must be -1 or more")
    if epoch < LEAVE_STATIC:
        raise _invalid(f"member_epoch is {epoch}: the lowest valid epoch is -2")
    if epoch == LEAVE_STATIC and body.instance_id is None:
        raise _invalid("member_epoch is -2: only a member with an instance id can leave for a while")
    if epoch == JOIN:
        if milliseconds(body.rebalance_timeout) == UNCHANGED_MS:
            raise _invalid("rebalance_timeout_ms is required to join")
        if body.topic_partitions is None or body.topic_partitions:
            raise _invalid("topic_partitions must be empty to join")
        if body.subscribed_topic_names is None and call.get("subscribed_topic_regex") is None:
            raise _invalid("a subscription is required to join")


def _invalid(text: str) -> KafkaError:
    return KafkaError(Code.INVALID_REQUEST, text)


def _request(call: Call, context: GroupsContext) -> HeartbeatRequest:
    body, names = call.body, call.body.subscribed_topic_names
    leaves = body.member_epoch in (LEAVE, LEAVE_STATIC)
    return HeartbeatRequest(
        member_id=body.member_id or str(UUID(hex=context.ids.new())),
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
