"""ConsumerGroupDescribe (key 69), v0-1.

Returns the state of groups of the consumer protocol, and their members with current and target assignment.

A classic group, or one that does not exist, is an error (69); clients then send DescribeGroups.
v1 whether a member uses the classic or the consumer protocol
"""

from typing import Any, Final

from lakestream.coordination.groups.consumer_group import assignor_of
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import ConsumerGroupRecord, ConsumerMember
from lakestream.protocol.kafka import fields
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import group_code, state_name, topic_partitions
from lakestream.protocol.kafka.services import GroupsContext

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


@handles(69, versions=range(0, 2))
async def consumer_group_describe(call: Call, context: GroupsContext) -> Body:
    return {"groups": [await _describe(name, call, context) for name in call.body.group_ids]}


async def _describe(name: str, call: Call, context: GroupsContext) -> dict[str, Any]:
    if not name:
        return _error(name, Code.INVALID_GROUP_ID, "a group id must not be empty")
    try:
        record = await context.groups.describe(name)
    except LakestreamError as error:
        return _error(name, group_code(error), error_message(error))
    if not isinstance(record, ConsumerGroupRecord):
        text = f"group {name} does not exist" if record is None else f"group {name} does not use the consumer protocol"
        return _error(name, Code.GROUP_ID_NOT_FOUND, text)
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "group_id": name,
        "group_state": state_name(record),
        "group_epoch": record.epoch,
        "assignment_epoch": record.target_epoch,
        "assignor_name": assignor_of(record),
        "members": [_member(member_id, member, context) for member_id, member in record.members.items()],
        "authorized_operations": fields.ON_GROUP if call.body.include_authorized_operations else fields.NOT_REQUESTED,
    }


def _error(name: str, code: Code, text: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": text,
        "group_id": name,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": fields.NOT_REQUESTED,
    }


def _member(member_id: str, member: ConsumerMember, context: GroupsContext) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.host,
        "subscribed_topic_names": list(member.names),
        "subscribed_topic_regex": member.pattern,
        "assignment": {"topic_partitions": topic_partitions(member.assigned, context.metadata_cache.cached_name)},
        "target_assignment": {"topic_partitions": topic_partitions(member.target, context.metadata_cache.cached_name)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }
