"""ConsumerGroupDescribe (key 69), v0-1.

The state of groups of the new protocol, their members, what each has and what each shall have.

A group of the classic protocol, and one that does not exist, is an error (69): clients ask DescribeGroups then.
v1 whether a member speaks the classic protocol or the new one
"""

from typing import Any, Final

from lakestream.coordination.groups.consumer import assignor_of
from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import ConsumerGroupRecord, ConsumerMember
from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code, state_name, topic_partitions
from lakestream.protocol.kafka.services import Services

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


@handles(69, versions=range(0, 2))
async def consumer_group_describe(call: Call, services: Services) -> Body:
    return {"groups": [await _described(name, call, services) for name in call.body.group_ids]}


async def _described(name: str, call: Call, services: Services) -> dict[str, Any]:
    if not name:
        return _refused(name, Code.INVALID_GROUP_ID, "a group must have a name")
    try:
        record = await services.groups.describe(name)
    except LakestreamError as error:
        return _refused(name, group_code(error), describe(error))
    if not isinstance(record, ConsumerGroupRecord):
        text = f"there is no group {name}" if record is None else f"group {name} is not one of the new protocol"
        return _refused(name, Code.GROUP_ID_NOT_FOUND, text)
    return {
        "error_code": Code.NONE,
        "error_message": None,
        "group_id": name,
        "group_state": state_name(record),
        "group_epoch": record.epoch,
        "assignment_epoch": record.target_epoch,
        "assignor_name": assignor_of(record),
        "members": [_member(member_id, member, services) for member_id, member in record.members.items()],
        "authorized_operations": authorized.ON_GROUP
        if call.body.include_authorized_operations
        else authorized.NOT_GIVEN,
    }


def _refused(name: str, code: Code, text: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": text,
        "group_id": name,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": authorized.NOT_GIVEN,
    }


def _member(member_id: str, member: ConsumerMember, services: Services) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.host,
        "subscribed_topic_names": list(member.names),
        "subscribed_topic_regex": member.pattern,
        "assignment": {"topic_partitions": topic_partitions(member.assigned, services.view.name_of)},
        "target_assignment": {"topic_partitions": topic_partitions(member.target, services.view.name_of)},
        "member_type": CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    }
