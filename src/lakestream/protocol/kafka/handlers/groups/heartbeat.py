"""Heartbeat (key 12), v0-4.

Keeps the session of a member. The response has error 27 if the member must rejoin. Answered from memory.

v3 instance id · v4 flexible
"""

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.handlers.groups.shared import group_code, refusal_code
from lakestream.protocol.kafka.services import GroupsContext


@handles(12, versions=range(0, 5))
async def heartbeat(call: Call, context: GroupsContext) -> Body:
    body = call.body
    try:
        refusal = await context.groups.heartbeat(
            body.group_id, body.member_id, call.get("group_instance_id"), body.generation_id
        )
    except LakestreamError as error:
        return {"error_code": group_code(error)}
    return {"error_code": refusal_code(refusal)}
