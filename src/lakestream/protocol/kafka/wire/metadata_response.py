"""Hand-written encoder of Metadata responses, made of cached pieces: all clients request the same metadata repeatedly.

The piece of a topic is encoded once for each version and zone, and cached until a topic or a broker changes. A test
compares every version with the generated writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from lakestream.metadata.brokers import Broker
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.wire.codec import Request
from lakestream.protocol.kafka.wire.primitives import I32, count, nullable_string, string

CONTROLLER_FROM, CLUSTER_ID_FROM, THROTTLE_FROM, OFFLINE_FROM, EPOCH_FROM = 1, 2, 3, 5, 7
OPERATIONS_FROM, FLEXIBLE_FROM, IDS_FROM, CLUSTER_OPERATIONS_UNTIL, ERROR_FROM = 8, 9, 10, 10, 13

_I16 = struct.Struct(">h")
_HEAD = struct.Struct(">ii")
_NO_ID = UUID(int=0)
_NO_LEADER_EPOCH = b"\0\0\0\0"


class DescribedTopic(NamedTuple):
    error: Code
    name: str | None
    topic_id: UUID | None
    leaders: Sequence[int] = ()
    """The leader of each partition, by number. The response also names it as the only replica."""
    operations: int = -(2**31)


class DescribedCluster(NamedTuple):
    brokers: Sequence[Broker]
    cluster_id: str
    controller_id: int
    operations: int


def encode_response(request: Request, cluster: DescribedCluster, topics: Sequence[bytes]) -> bytes:
    """Encodes the whole response, with its size in front."""
    version = request.version
    flexible = version >= FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    out = [end]
    if version >= THROTTLE_FROM:
        out.append(b"\0\0\0\0")
    out.append(count(len(cluster.brokers), flexible))
    out += [_encode_broker(broker, version, flexible, end) for broker in cluster.brokers]
    if version >= CLUSTER_ID_FROM:
        out.append(nullable_string(cluster.cluster_id, flexible))
    if version >= CONTROLLER_FROM:
        out.append(I32.pack(cluster.controller_id))
    out.append(count(len(topics), flexible))
    out += topics
    if OPERATIONS_FROM <= version <= CLUSTER_OPERATIONS_UNTIL:
        out.append(I32.pack(cluster.operations))
    if version >= ERROR_FROM:
        out.append(_I16.pack(Code.NONE))
    out.append(end)
    body = b"".join(out)
    return _HEAD.pack(len(body) + I32.size, request.correlation_id) + body


def encode_topic(topic: DescribedTopic, version: int) -> bytes:
    flexible = version >= FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    out = [_I16.pack(topic.error)]
    out.append(string(topic.name, flexible) if topic.name is not None else nullable_string(None, flexible))
    if version >= IDS_FROM:
        out.append((topic.topic_id or _NO_ID).bytes)
    if version >= CONTROLLER_FROM:
        out.append(b"\0")  # not internal
    out.append(count(len(topic.leaders), flexible))
    out += [_encode_partition(number, leader, version, flexible, end) for number, leader in enumerate(topic.leaders)]
    if version >= OPERATIONS_FROM:
        out.append(I32.pack(topic.operations))
    out.append(end)
    return b"".join(out)


def _encode_broker(broker: Broker, version: int, flexible: bool, end: bytes) -> bytes:
    encoded = I32.pack(broker.node_id) + string(broker.host, flexible) + I32.pack(broker.port)
    if version >= CONTROLLER_FROM:
        encoded += nullable_string(broker.zone or None, flexible)
    return encoded + end


def _encode_partition(number: int, leader: int, version: int, flexible: bool, end: bytes) -> bytes:
    only = count(1, flexible) + I32.pack(leader)
    encoded = _I16.pack(Code.NONE) + _HEAD.pack(number, leader)
    if version >= EPOCH_FROM:
        encoded += _NO_LEADER_EPOCH
    encoded += only + only
    if version >= OFFLINE_FROM:
        encoded += count(0, flexible)
    return encoded + end
