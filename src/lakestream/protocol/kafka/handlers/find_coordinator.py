"""FindCoordinator (key 10), v0-6.

Groups and transactions are not served yet: there is no coordinator, for now (15). Clients that need one ask again and
wait; consumers by assignment, which also ask if a group is configured, go on without.

It is offered all the same: librdkafka compresses with lz4 only for brokers that have this request.
v1 key type, error message · v3 flexible · v4 several keys in one request
"""

from typing import Any, Final

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services

SEVERAL_FROM_VERSION: Final = 4
KINDS: Final = {0: "consumer groups", 1: "transactions", 2: "share groups"}
NOBODY: Final = {"node_id": -1, "host": "", "port": -1}


@handles(10, versions=range(0, 7))
async def find_coordinator(call: Call, services: Services) -> Body:
    kind = KINDS.get(call.get("key_type", 0), "coordinators of this type")
    refusal: dict[str, Any] = {
        **NOBODY,
        "error_code": Code.COORDINATOR_NOT_AVAILABLE,
        "error_message": f"{kind} are not served yet",
    }
    if call.version < SEVERAL_FROM_VERSION:
        return refusal
    return {"coordinators": [{"key": key, **refusal} for key in call.body.coordinator_keys]}
