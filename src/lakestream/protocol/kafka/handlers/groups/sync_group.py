"""SyncGroup (key 14), v0-5.

The leader sends the assignments of all members; the other members wait for theirs until the leader has sent them.
The coordinator passes assignments on without parsing them. They are stored before any response.

v3 instance id · v4 flexible · v5 protocol type and name, which must be those of the group
"""

from lakestream.coordination.groups.messages import SyncRequest, SyncResult
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.join_group import NO_TICKET
from lakestream.protocol.kafka.handlers.groups.shared import group_code, refusal_code
from lakestream.protocol.kafka.services import GroupsContext


@handles(14, versions=range(0, 6))
async def sync_group(call: Call, context: GroupsContext) -> Body:
    body = call.body
    request = SyncRequest(
        ticket=NO_TICKET,
        member_id=body.member_id,
        instance_id=call.get("group_instance_id"),
        generation=body.generation_id,
        protocol_type=call.get("protocol_type"),
        protocol=call.get("protocol_name"),
        assignments={one.member_id: one.assignment for one in body.assignments},
    )
    try:
        synced = await context.groups.sync(body.group_id, request)
    except LakestreamError as error:
        return _response(SyncResult(None, body.member_id), group_code(error))
    return _response(synced, refusal_code(synced.error))


def _response(synced: SyncResult, code: Code) -> Body:
    return {
        "error_code": code,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }
