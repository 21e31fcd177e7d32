"""SyncGroup (key 14), v0-5.

The leader brings what everybody shall have; everybody else asks for its share, and waits until the leader has come.
Assignments are passed on and never read. They are stored before anybody hears of them.

v3 instance id · v4 flexible · v5 protocol type and name, which must be those of the group
"""

from lakestream.coordination.groups.values import Sync, Synced
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code, refusal_code
from lakestream.protocol.kafka.handlers.join_group import NO_TICKET
from lakestream.protocol.kafka.services import Services


@handles(14, versions=range(0, 6))
async def sync_group(call: Call, services: Services) -> Body:
    body = call.body
    wish = Sync(
        ticket=NO_TICKET,
        member_id=body.member_id,
        instance_id=call.get("group_instance_id"),
        generation=body.generation_id,
        protocol_type=call.get("protocol_type"),
        protocol=call.get("protocol_name"),
        assignments={one.member_id: one.assignment for one in body.assignments},
    )
    try:
        synced = await services.groups.sync(body.group_id, wish)
    except LakestreamError as error:
        return _answer(Synced(None, body.member_id), group_code(error))
    return _answer(synced, refusal_code(synced.refusal))


def _answer(synced: Synced, code: Code) -> Body:
    return {
        "error_code": code,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }
