"""FindCoordinator (key 10), v0-6.

Where the members of a group meet, and whom the producer of a transactional id asks: a live broker, by rendezvous hash.
All brokers that know the same others say the same, and one that is asked although it is not the one says so (16).

Of share groups, and of types that nobody knows, there is no coordinator (42): clients would ask for ever if they were
told that none is there now.
v1 key type, error message · v3 flexible · v4 several keys in one request
"""

from typing import Any, Final

from lakestream.coordination.groups.coordinator import check_name
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.groups import group_code
from lakestream.protocol.kafka.services import Services
from lakestream.protocol.kafka.transactions import checked_id

SEVERAL_FROM_VERSION: Final = 4
GROUP, TRANSACTION, SHARE_GROUP = range(3)
NOBODY: Final = {"node_id": -1, "host": "", "port": -1}


@handles(10, versions=range(0, 7))
async def find_coordinator(call: Call, services: Services) -> Body:
    kind = call.get("key_type", GROUP)
    if call.version < SEVERAL_FROM_VERSION:
        return _found(kind, call.body.key, services)
    return {"coordinators": [{"key": key, **_found(kind, key, services)} for key in call.body.coordinator_keys]}


def _found(kind: int, key: str, services: Services) -> dict[str, Any]:
    try:
        if kind == GROUP:
            broker = services.groups.coordinator_of(check_name(key, may_be_empty=True))
        elif kind == TRANSACTION:
            broker = services.transactions.coordinator_of(checked_id(key))
        else:
            what = "share groups" if kind == SHARE_GROUP else f"coordinators of type {kind}"
            return _refused(Code.INVALID_REQUEST, f"{what} are not served: there are those of groups and transactions")
    except LakestreamError as error:
        return _refused(group_code(error), describe(error))
    return {"error_code": Code.NONE, "node_id": broker.node_id, "host": broker.host, "port": broker.port}


def _refused(code: Code, message: str) -> dict[str, Any]:
    return {**NOBODY, "error_code": code, "error_message": message}
