"""ListConfigResources (key 74), v0-1.

What has settings: the topics and the brokers. Client metrics and groups have none here.

v0 client metrics only, and so nothing · v1 by type; no type named: all
"""

from typing import Any

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.resources import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from lakestream.protocol.kafka.services import Services

KNOWN = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))


@handles(74, versions=range(0, 2))
async def list_config_resources(call: Call, services: Services) -> Body:
    wanted = frozenset(call.get("resource_types", (CLIENT_METRICS,))) or KNOWN
    if not wanted <= KNOWN:
        return {"error_code": Code.UNSUPPORTED_VERSION}
    resources: list[dict[str, Any]] = []
    if TOPIC in wanted:
        resources += [{"resource_name": name, "resource_type": TOPIC} for name in sorted(services.view.topics)]
    if BROKER in wanted:
        resources += [
            {"resource_name": str(broker.node_id), "resource_type": BROKER}
            for broker in services.view.brokers or [services.me]
        ]
    return {"error_code": Code.NONE, "config_resources": resources}
