"""DescribeGroups (key 15), v0-6.

Returns the state of classic groups, and their members with their assignments.

A group that does not exist has the state Dead; from v6 on it is an error (69). The same holds for a group of the
consumer protocol: clients send ConsumerGroupDescribe first.
v3 authorized operations · v4 instance ids · v5 flexible · v6 error message
"""

from typing import Any, Final

from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import GroupRecord, GroupState, Member
from lakestream.protocol.kafka import fields
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import STATE_NAMES, group_code, state_name
from lakestream.protocol.kafka.services import GroupsContext

MISSING_IS_ERROR_FROM: Final = 6


@handles(15, versions=range(0, 7))
async def describe_groups(call: Call, context: GroupsContext) -> Body:
    return {"groups": [await _describe(name, call, context) for name in call.body.groups]}


async def _describe(name: str, call: Call, context: GroupsContext) -> dict[str, Any]:
    try:
        record = await context.groups.describe(name)
    except LakestreamError as error:
        return _error(name, group_code(error), error_message(error), "")
    if not isinstance(record, GroupRecord):
        is_error = call.version >= MISSING_IS_ERROR_FROM
        code = Code.GROUP_ID_NOT_FOUND if is_error else Code.NONE
        text = f"group {name} does not exist" if record is None else f"group {name} is not a classic group"
        return _error(name, code, text if is_error else None, STATE_NAMES[GroupState.DEAD])
    return {
        "error_code": Code.NONE,
        "group_id": name,
        "group_state": state_name(record),
        "protocol_type": record.protocol_type,
        "protocol_data": record.protocol or "",
        "members": [_member(member, record) for member in record.members.values()],
        "authorized_operations": fields.ON_GROUP if call.get("include_authorized_operations") else fields.NOT_REQUESTED,
    }


def _error(name: str, code: Code, message: str | None, state: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "group_id": name,
        "group_state": state,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": fields.NOT_REQUESTED,
    }


def _member(member: Member, record: GroupRecord) -> dict[str, Any]:
    """Metadata and assignment of a member belong to a generation. They are empty during a rebalance."""
    stable = record.state is GroupState.STABLE
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.host,
        "member_metadata": member.metadata(record.protocol) if stable else b"",
        "member_assignment": member.assignment if stable else b"",
    }
