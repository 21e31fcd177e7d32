"""DescribeGroups (key 15), v0-6.

The state of groups, their members, and what each has.

A group that does not exist is described as dead; from v6 on that is an error (69). So is one of the new protocol:
clients ask ConsumerGroupDescribe first.
v3 authorized operations · v4 instance ids · v5 flexible · v6 error message
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import GroupRecord, Member, State
from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import STATE_NAMES, group_code, state_name
from lakestream.protocol.kafka.services import Services

MISSING_IS_ERROR_FROM: Final = 6


@handles(15, versions=range(0, 7))
async def describe_groups(call: Call, services: Services) -> Body:
    return {"groups": [await _described(name, call, services) for name in call.body.groups]}


async def _described(name: str, call: Call, services: Services) -> dict[str, Any]:
    try:
        record = await services.groups.describe(name)
    except LakestreamError as error:
        return _refused(name, group_code(error), describe(error), "")
    if not isinstance(record, GroupRecord):
        is_error = call.version >= MISSING_IS_ERROR_FROM
        code = Code.GROUP_ID_NOT_FOUND if is_error else Code.NONE
        text = f"there is no group {name}" if record is None else f"group {name} is not a classic group"
        return _refused(name, code, text if is_error else None, STATE_NAMES[State.DEAD])
    return {
        "error_code": Code.NONE,
        "group_id": name,
        "group_state": state_name(record),
        "protocol_type": record.protocol_type,
        "protocol_data": record.protocol or "",
        "members": [_member(member, record) for member in record.members.values()],
        "authorized_operations": authorized.ON_GROUP
        if call.get("include_authorized_operations")
        else authorized.NOT_GIVEN,
    }


def _refused(name: str, code: Code, message: str | None, state: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": name,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": authorized.NOT_GIVEN,
    }


def _member(member: Member, record: GroupRecord) -> dict[str, Any]:
    """What it says of itself, and what it has, belong to a generation: while that changes, nothing is said of it."""
    settled = record.state is State.STABLE
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.host,
        "member_metadata": member.metadata(record.protocol) if settled else b"",
        "member_assignment": member.assignment if settled else b"",
    }
