"""DescribeCluster (key 60), v0-2.

The brokers that live and the cluster's id. The controller is whoever is asked: every broker can do what controllers do.

The controllers themselves (endpoint type 2) cannot be listed: there are none.
v1 endpoint type · v2 fenced brokers (there are none either)
"""

from typing import Final

from lakestream.protocol.kafka import authorized
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import Services

BROKERS, CONTROLLERS = 1, 2
_REFUSED: Final = {
    CONTROLLERS: (Code.MISMATCHED_ENDPOINT_TYPE, "this is a broker; there are no controllers to ask"),
}


@handles(60, versions=range(0, 3))
async def describe_cluster(call: Call, services: Services) -> Body:
    endpoint_type = call.get("endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        unknown = (Code.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {endpoint_type} is not known: give {BROKERS}")
        code, message = _REFUSED.get(endpoint_type, unknown)
        return {"error_code": code, "error_message": message, "endpoint_type": endpoint_type}
    asked = call.body.include_cluster_authorized_operations
    return {
        "error_code": Code.NONE,
        "endpoint_type": BROKERS,
        "cluster_id": services.cluster_id,
        "controller_id": services.me.node_id,
        "brokers": [
            {"broker_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.zone or None}
            for broker in services.view.brokers or [services.me]
        ],
        "cluster_authorized_operations": authorized.ON_CLUSTER if asked else authorized.NOT_GIVEN,
    }
