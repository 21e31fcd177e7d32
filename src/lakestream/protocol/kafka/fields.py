"""Common fields of requests and responses: authorized operations, topic names, and the zone of a client.

Without access control lists clients are authorized for all operations.
"""

import re
from functools import lru_cache
from typing import Final

from lakestream.protocol.kafka.errors import Code, KafkaError

NOT_REQUESTED: Final = -(2**31)
"""Sent if the client does not request the authorized operations."""

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = range(3, 10)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = range(10, 13)


def _bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


ON_TOPIC: Final = _bits(_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS)
ON_GROUP: Final = _bits(_READ, _DELETE, _DESCRIBE)
ON_CLUSTER: Final = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE
)


_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ZONE: Final = re.compile(r"(?:^|[,;\s])(?:zone_id|diskless_az)=([^,;\s]+)")


def check_topic_name(name: str) -> None:
    if _TOPIC_NAME.fullmatch(name) is None or name in (".", ".."):
        text = f"invalid topic name {name!r}: use 1 to 249 of a-z A-Z 0-9 . _ -"
        raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, text)


@lru_cache(maxsize=10_000)
def zone_of(client_id: str | None) -> str:
    """Returns the zone in a client id (`zone_id=a` or `diskless_az=a`), or an empty string."""
    match = _ZONE.search(client_id or "")
    return match[1] if match else ""
