"""JoinGroup (key 11), v0-9.

A member joins a group, or rejoins it for a rebalance, and waits until all members have joined. One of them, the leader,
receives the metadata of all members and assigns the partitions (SyncGroup). The coordinator passes the metadata on to
the leader without parsing it.

In a group of the consumer protocol the coordinator assigns: it parses the subscription, and responds without a wait.

A new member first gets its member id and joins again with it (79, from v4 on). A member with an instance id replaces
the previous member with this instance id. An empty group waits 0.2 s for more members before its first generation.
v1 rebalance timeout · v4 id first · v5 instance id · v6 flexible · v7 protocol type · v8 reason · v9 skip assignment
"""

from typing import Any, Final
from uuid import UUID

from lakestream.coordination.groups.messages import JoinRequest, JoinResult
from lakestream.errors import LakestreamError
from lakestream.metadata.groups import MemberProtocol
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import check_words, group_code, milliseconds, refusal_code
from lakestream.protocol.kafka.services import GroupsContext

ID_FIRST_FROM: Final = 4
NULL_NAMES_FROM: Final = 7
SKIP_FROM: Final = 9
NO_TICKET: Final = 0
ID_CHARACTERS_MAX: Final = 200
"""Characters of the client id or instance id in a member id, which may have WORD_BYTES_MAX bytes."""


@handles(11, versions=range(0, 10))
async def join_group(call: Call, context: GroupsContext) -> Body:
    try:
        _check(call)
        joined = await context.groups.join(call.body.group_id, _request(call, context))
    except LakestreamError as error:
        return _response(call, JoinResult(None, call.body.member_id), group_code(error))
    return _response(call, joined, refusal_code(joined.error))


def _check(call: Call) -> None:
    body = call.body
    check_words(
        member_id=body.member_id, group_instance_id=call.get("group_instance_id"), protocol_type=body.protocol_type
    )
    for protocol in body.protocols:
        check_words(protocol=protocol.name)


def _request(call: Call, context: GroupsContext) -> JoinRequest:
    body = call.body
    client_id = call.request.client_id or ""
    instance_id = call.get("group_instance_id")
    prefix = (instance_id or client_id)[:ID_CHARACTERS_MAX]
    return JoinRequest(
        ticket=NO_TICKET,
        member_id=body.member_id,
        new_id=f"{prefix}-{UUID(hex=context.ids.new())}",
        instance_id=instance_id,
        client_id=client_id,
        host=f"/{call.connection.address}",
        session_ms=milliseconds(body.session_timeout),
        rebalance_ms=milliseconds(call.get("rebalance_timeout", body.session_timeout)),
        protocol_type=body.protocol_type,
        protocols=tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in body.protocols),
        requires_known_member_id=call.version >= ID_FIRST_FROM,
        supports_skipping_assignment=call.version >= SKIP_FROM,
    )


def _response(call: Call, joined: JoinResult, code: Code) -> dict[str, Any]:
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
