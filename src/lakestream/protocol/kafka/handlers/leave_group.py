"""LeaveGroup (key 13), v0-5.

Members leave a group; the others are told to join again. From v3 on several at once, each with an answer of its own: an
administrator removes static members by their instance ids alone.

v3 several, instance id · v4 flexible · v5 reason
"""

from lakestream.coordination.groups.values import Leaver
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code, refusal_code
from lakestream.protocol.kafka.services import Services

SEVERAL_FROM = 3


@handles(13, versions=range(0, 6))
async def leave_group(call: Call, services: Services) -> Body:
    if call.version >= SEVERAL_FROM:
        leavers = [Leaver(member.member_id, member.group_instance_id) for member in call.body.members]
    else:
        leavers = [Leaver(call.body.member_id)]
    try:
        refusals = await services.groups.leave(call.body.group_id, leavers)
    except LakestreamError as error:
        return {"error_code": group_code(error), "members": []}
    codes = [refusal_code(refusal) for refusal in refusals]
    if call.version < SEVERAL_FROM:
        return {"error_code": codes[0]}
    return {
        "error_code": Code.NONE,
        "members": [
            {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": code}
            for leaver, code in zip(leavers, codes, strict=True)
        ],
    }
