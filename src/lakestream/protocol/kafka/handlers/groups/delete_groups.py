"""DeleteGroups (key 42), v0-2.

Deletes groups with their offsets. A group with members is not deleted (68); one that does not exist is an error (69).

v2 flexible
"""

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import group_code, refusal_code
from lakestream.protocol.kafka.services import GroupsContext


@handles(42, versions=range(0, 3))
async def delete_groups(call: Call, context: GroupsContext) -> Body:
    return {
        "results": [{"group_id": name, "error_code": await _delete(name, context)} for name in call.body.groups_names]
    }


async def _delete(name: str, context: GroupsContext) -> Code:
    try:
        return refusal_code(await context.groups.delete(name))
    except LakestreamError as error:
        return group_code(error)
