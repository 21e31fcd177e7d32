"""ListConfigResources (key 74), v0-1.

Lists the resources that have configs: topics, brokers, and the groups on which any were set.

v0 only client metrics, so an empty list · v1 by type, all types by default
"""

from typing import Any

from lakestream.metadata.cluster import GROUP_KIND
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.configs.shared import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC
from lakestream.protocol.kafka.services import ConfigsContext

TYPES = frozenset((TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP))


@handles(74, versions=range(0, 2))
async def list_config_resources(call: Call, context: ConfigsContext) -> Body:
    types = frozenset(call.get("resource_types", (CLIENT_METRICS,))) or TYPES
    if not types <= TYPES:
        return {"error_code": Code.UNSUPPORTED_VERSION}
    resources: list[dict[str, Any]] = []
    if TOPIC in types:
        resources += [{"resource_name": name, "resource_type": TOPIC} for name in sorted(context.metadata_cache.topics)]
    if BROKER in types:
        resources += [
            {"resource_name": str(broker.node_id), "resource_type": BROKER}
            for broker in context.metadata_cache.brokers or [context.broker]
        ]
    if GROUP in types:
        groups = sorted(one.name for one in context.metadata_cache.configs if one.kind == GROUP_KIND)
        resources += [{"resource_name": name, "resource_type": GROUP} for name in groups]
    return {"error_code": Code.NONE, "config_resources": resources}
