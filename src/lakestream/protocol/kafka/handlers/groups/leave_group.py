"""LeaveGroup (key 13), v0-5.

Members leave a group, and the remaining members rebalance. From v3 on a request has several members, each with its own
error code: an administrator removes static members by their instance ids alone.

v3 several, instance id · v4 flexible · v5 reason
"""

from lakestream.coordination.groups.messages import LeavingMember
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import group_code, refusal_code
from lakestream.protocol.kafka.services import GroupsContext

SEVERAL_FROM = 3


@handles(13, versions=range(0, 6))
async def leave_group(call: Call, context: GroupsContext) -> Body:
    if call.version >= SEVERAL_FROM:
        leavers = [LeavingMember(member.member_id, member.group_instance_id) for member in call.body.members]
    else:
        leavers = [LeavingMember(call.body.member_id)]
    try:
        refusals = await context.groups.leave(call.body.group_id, leavers)
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
