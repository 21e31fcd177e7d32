"""JoinGroup (key 11), v0-9.

A member comes into a group, or comes again because something changed, and waits until all have. One of them, the
leader, is told of all the others and assigns the partitions (SyncGroup). What members say of themselves is passed on to
the leader and never read.

In a group of the new protocol the coordinator leads: the subscription is read, and the answer comes at once.

A new member is told its id first and comes again with it (79, from v4 on). A member with an instance id takes the place
of the one before it. An empty group waits 0.2 s for more members before it begins.
v1 rebalance timeout · v4 id first · v5 instance id · v6 flexible · v7 protocol type · v8 reason · v9 skip assignment
"""

from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.values import Join, Joined
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import Protocol
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import check_words, group_code, milliseconds, refusal_code
from lakestream.protocol.kafka.services import Services

ID_FIRST_FROM: Final = 4
NULL_NAMES_FROM: Final = 7
SKIP_FROM: Final = 9
NO_TICKET: Final = 0
ID_CHARACTERS_MAX: Final = 200
"""Of what a client calls itself, in the id that it is given: an id may have WORD_BYTES_MAX bytes."""


@handles(11, versions=range(0, 10))
async def join_group(call: Call, services: Services) -> Body:
    try:
        _check(call)
        joined = await services.groups.join(call.body.group_id, _wish(call, services))
    except LakestreamError as error:
        return _answer(call, Joined(None, call.body.member_id), group_code(error))
    return _answer(call, joined, refusal_code(joined.refusal))


def _check(call: Call) -> None:
    body = call.body
    check_words(
        member_id=body.member_id, group_instance_id=call.get("group_instance_id"), protocol_type=body.protocol_type
    )
    for protocol in body.protocols:
        check_words(protocol=protocol.name)


def _wish(call: Call, services: Services) -> Join:
    body = call.body
    client_id = call.request.client_id or ""
    instance_id = call.get("group_instance_id")
    prefix = (instance_id or client_id)[:ID_CHARACTERS_MAX]
    return Join(
        ticket=NO_TICKET,
        member_id=body.member_id,
        new_id=f"{prefix}-{UUID(hex=services.ids.new())}",
        instance_id=instance_id,
        client_id=client_id,
        host=f"/{call.connection.address}",
        session_ms=milliseconds(body.session_timeout),
        rebalance_ms=milliseconds(call.get("rebalance_timeout", body.session_timeout)),
        protocol_type=body.protocol_type,
        protocols=tuple(Protocol(protocol.name, protocol.metadata) for protocol in body.protocols),
        asks_id_first=call.version >= ID_FIRST_FROM,
        may_skip=call.version >= SKIP_FROM,
    )


def _answer(call: Call, joined: Joined, code: Code) -> dict[str, Any]:
    none = None if call.version >= NULL_NAMES_FROM else ""
    return {
        "error_code": code,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if joined.protocol is not None else none,
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in joined.members
        ],
    }
