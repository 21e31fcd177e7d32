"""Which live broker a client is sent to for a partition or a group: rendezvous hash. Pure.

Only a hint: every broker serves everything. Brokers that come or go move only what hashes to them.
"""

from collections.abc import Sequence
from hashlib import blake2b

from lakestream.metadata.brokers import Broker


def near(brokers: Sequence[Broker], zone: str) -> list[Broker]:
    """Those in the client's zone; all, where it names none or nobody lives there."""
    neighbours = [broker for broker in brokers if zone and broker.zone == zone]
    return neighbours or list(brokers)


def chosen(key: str, brokers: Sequence[Broker]) -> Broker:
    """The same for all who know the same brokers."""
    assert brokers, "this broker lives, so there is one"
    return max(brokers, key=lambda broker: (_weight(key, broker.node_id), broker.node_id))


def _weight(key: str, node_id: int) -> bytes:
    return blake2b(f"{key}@{node_id}".encode(), digest_size=8).digest()
