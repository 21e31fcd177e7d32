"""ListGroups (key 16), v0-5.

Lists the groups that this broker coordinates. Clients send it to all brokers, which together return each group once.

v3 flexible · v4 states · v5 types (`classic`, `consumer`)
"""

from lakestream.errors import LakestreamError
from lakestream.metadata.group_records import AnyGroupRecord, GroupRecord
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import CLASSIC, CONSUMER, group_code, state_name
from lakestream.protocol.kafka.services import GroupsContext


@handles(16, versions=range(0, 6))
async def list_groups(call: Call, context: GroupsContext) -> Body:
    states = {state.lower() for state in call.get("states_filter", ())}
    types = {kind.lower() for kind in call.get("types_filter", ())}
    try:
        groups = await context.groups.list_coordinated()
    except LakestreamError as error:
        return {"error_code": group_code(error), "groups": []}
    return {
        "error_code": Code.NONE,
        "groups": [
            {
                "group_id": name,
                "protocol_type": record.protocol_type if isinstance(record, GroupRecord) else CONSUMER,
                "group_state": state_name(record),
                "group_type": _type(record),
            }
            for name, record in groups
            if (not states or state_name(record).lower() in states) and (not types or _type(record) in types)
        ],
    }


def _type(record: AnyGroupRecord) -> str:
    return CLASSIC if isinstance(record, GroupRecord) else CONSUMER
