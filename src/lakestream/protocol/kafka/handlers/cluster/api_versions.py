"""ApiVersions (key 18), v0-4.

Returns the requests that this broker serves, with their versions. Every client sends it first.

A version above the newest gets a response of v0 with error 35 and the list, and the connection stays open. With the
feature transaction.version 2, brokers add partitions to transactions; with group.version 1, groups may use the consumer
protocol.
v3 client software name and version (letters, digits, dash, dot), features · v4 features whose lowest version is 0
"""

import re
from typing import Any, Final

from lakestream.protocol.kafka.dispatch import API_VERSIONS, HANDLERS, UNKNOWN_VERSION, Body, Call, handles
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.services import ClusterContext

FEATURES: Final = (("group.version", 1), ("transaction.version", 2))
FEATURES_EPOCH: Final = 2
"""Must be raised with every change of the features: clients use the features with the highest epoch of any broker."""
ZERO_FROM_VERSION: Final = 4
"""Before this version, clients cannot parse a feature whose lowest version is 0."""

_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(API_VERSIONS, versions=range(0, 5))
async def api_versions(call: Call, context: ClusterContext) -> Body:
    if call.body is UNKNOWN_VERSION:
        return {"error_code": Code.UNSUPPORTED_VERSION, "api_keys": offered()}
    if call.version >= 3 and not all(
        _SOFTWARE.fullmatch(call.get(name)) for name in ("client_software_name", "client_software_version")
    ):
        return {"error_code": Code.INVALID_REQUEST}
    return {
        "error_code": Code.NONE,
        "api_keys": offered(),
        "supported_features": [_supported(*feature) for feature in FEATURES]
        if call.version >= ZERO_FROM_VERSION
        else [],
        "finalized_features_epoch": FEATURES_EPOCH,
        "finalized_features": [_finalized(*feature) for feature in FEATURES],
    }


def _supported(name: str, level: int) -> dict[str, Any]:
    return {"name": name, "min_version": 0, "max_version": level}


def _finalized(name: str, level: int) -> dict[str, Any]:
    return {"name": name, "min_version_level": level, "max_version_level": level}


def offered() -> list[dict[str, Any]]:
    return [
        {"api_key": key, "min_version": handler.reports_from, "max_version": handler.versions.stop - 1}
        for key, handler in sorted(HANDLERS.items())
    ]
