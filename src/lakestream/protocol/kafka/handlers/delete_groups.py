"""DeleteGroups (key 42), v0-2.

Deletes groups with their offsets. One that has members is refused (68), one that does not exist too (69).

v2 flexible
"""

from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code, refusal_code
from lakestream.protocol.kafka.services import Services


@handles(42, versions=range(0, 3))
async def delete_groups(call: Call, services: Services) -> Body:
    return {
        "results": [{"group_id": name, "error_code": await _deleted(name, services)} for name in call.body.groups_names]
    }


async def _deleted(name: str, services: Services) -> Code:
    try:
        return refusal_code(await services.groups.delete(name))
    except LakestreamError as error:
        return group_code(error)
