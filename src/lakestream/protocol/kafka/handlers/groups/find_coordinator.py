"""FindCoordinator (key 10), v0-6.

Returns the coordinator of a group or of a transactional id: a live broker, by rendezvous hash. All brokers with the
same cached list of brokers return the same one, and a broker that is not the coordinator rejects requests for it (16).

Share groups and unknown types have no coordinator: the code is INVALID_REQUEST (42), because clients would retry
COORDINATOR_NOT_AVAILABLE forever.
v1 key type, error message · v3 flexible · v4 several keys in one request
"""

from typing import Any, Final

from lakestream.coordination.groups.coordinator import check_name
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.groups.shared import group_code
from lakestream.protocol.kafka.handlers.transactions.shared import checked_id
from lakestream.protocol.kafka.services import GroupsContext

SEVERAL_FROM_VERSION: Final = 4
GROUP, TRANSACTION, SHARE_GROUP = range(3)
NO_BROKER: Final = {"node_id": -1, "host": "", "port": -1}


@handles(10, versions=range(0, 7))
async def find_coordinator(call: Call, context: GroupsContext) -> Body:
    kind = call.get("key_type", GROUP)
    if call.version < SEVERAL_FROM_VERSION:
        return _find(kind, call.body.key, context)
    return {"coordinators": [{"key": key, **_find(kind, key, context)} for key in call.body.coordinator_keys]}


def _find(kind: int, key: str, context: GroupsContext) -> dict[str, Any]:
    try:
        if kind == GROUP:
            broker = context.groups.coordinator_of(check_name(key, may_be_empty=True))
        elif kind == TRANSACTION:
            broker = context.transactions.coordinator_of(checked_id(key))
        else:
            kind_name = "share groups" if kind == SHARE_GROUP else f"coordinators of type {kind}"
            return _error(Code.INVALID_REQUEST, f"{kind_name} are not supported: use groups or transactions")
    except LakestreamError as error:
        return _error(group_code(error), error_message(error))
    return {"error_code": Code.NONE, "node_id": broker.node_id, "host": broker.host, "port": broker.port}


def _error(code: Code, message: str) -> dict[str, Any]:
    return {**NO_BROKER, "error_code": code, "error_message": message}
