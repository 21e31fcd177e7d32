"""Chooses the broker that clients use for a partition, a group or a transactional id: rendezvous hash. Pure.

The choice is only a hint, since every broker serves everything. When a broker starts or stops, only its keys move.
"""

from collections.abc import Sequence
from hashlib import blake2b

from lakestream.metadata.brokers import Broker


def in_zone(brokers: Sequence[Broker], zone: str) -> list[Broker]:
    """Returns the brokers in the client's zone, or all brokers if there is none or the client has no zone."""
    neighbours = [broker for broker in brokers if zone and broker.zone == zone]
    return neighbours or list(brokers)


def chosen(key: str, brokers: Sequence[Broker]) -> Broker:
    """Returns the same broker on all brokers that have the same list."""
    assert brokers, "the list contains at least this broker"
    return max(brokers, key=lambda broker: (_weight(key, broker.node_id), broker.node_id))


def _weight(key: str, node_id: int) -> bytes:
    return blake2b(f"{key}@{node_id}".encode(), digest_size=8).digest()
