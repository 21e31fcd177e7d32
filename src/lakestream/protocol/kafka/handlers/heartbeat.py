"""Heartbeat (key 12), v0-4.

A member says that it lives, and hears whether it is to join again (27). Answered from memory: nothing is written.

v3 instance id · v4 flexible
"""

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.groups import group_code, refusal_code
from lakestream.protocol.kafka.services import Services


@handles(12, versions=range(0, 5))
async def heartbeat(call: Call, services: Services) -> Body:
    body = call.body
    try:
        refusal = await services.groups.heartbeat(
            body.group_id, body.member_id, call.get("group_instance_id"), body.generation_id
        )
    except LakestreamError as error:
        return {"error_code": group_code(error)}
    return {"error_code": refusal_code(refusal)}
