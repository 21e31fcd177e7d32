"""DescribeCluster (key 60), v0-2.

Returns the live brokers and the cluster id. The broker that responds names itself as the controller: every broker can
serve requests to controllers.

Controllers (endpoint type 2) cannot be listed, because there are none.
v1 endpoint type · v2 fenced brokers (there are none)
"""

from typing import Final

from lakestream.protocol.kafka import fields
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import ClusterContext

BROKERS, CONTROLLERS = 1, 2
_REFUSED: Final = {
    CONTROLLERS: (Code.MISMATCHED_ENDPOINT_TYPE, "the cluster has no controllers: send the request to a broker"),
}


@handles(60, versions=range(0, 3))
async def describe_cluster(call: Call, context: ClusterContext) -> Body:
    endpoint_type = call.get("endpoint_type", BROKERS)
    if endpoint_type != BROKERS:
        unknown = (Code.UNSUPPORTED_ENDPOINT_TYPE, f"unknown endpoint type {endpoint_type}: use {BROKERS}")
        code, message = _REFUSED.get(endpoint_type, unknown)
        return {"error_code": code, "error_message": message, "endpoint_type": endpoint_type}
    include_operations = call.body.include_cluster_authorized_operations
    return {
        "error_code": Code.NONE,
        "endpoint_type": BROKERS,
        "cluster_id": context.cluster_id,
        "controller_id": context.broker.node_id,
        "brokers": [
            {"broker_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": broker.zone or None}
            for broker in context.metadata_cache.brokers or [context.broker]
        ],
        "cluster_authorized_operations": fields.ON_CLUSTER if include_operations else fields.NOT_REQUESTED,
    }
