"""Hand-written encoder of Fetch responses: a list of buffers that contains the buffers of the log itself.

Record bytes dominate the cost of this response, so they are neither copied nor joined.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from lakestream.data.log.log import Offsets
from lakestream.data.log.partition_state import Aborted
from lakestream.model import PartitionId
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.wire.codec import Request
from lakestream.protocol.kafka.wire.primitives import I32, count, string, uvarint
from lakestream.records.file_region import BufferOrFile

SESSIONS_FROM, LOG_START_FROM, REPLICA_FROM, FLEXIBLE_FROM, IDS_FROM = 7, 5, 11, 12, 13
NO_REPLICA: Final = -1

_PART = struct.Struct(">ihqq")
_PART_WITH_START = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_HEAD = struct.Struct(">ihi")


class FetchedPartition(NamedTuple):
    """The result of a read of one partition."""

    number: int
    error: Code
    bounds: Offsets
    partition: PartitionId | None = None
    records: Sequence[BufferOrFile] = ()
    size: int = 0
    batches: int = 0
    """Number of batches in `records`."""
    aborted: Sequence[Aborted] | None = None
    """Aborted transactions, or None for a reader with isolation level read_uncommitted."""
    preferred: int = NO_REPLICA
    has_more: bool = False
    """Whether more records can be read without a wait."""


class FetchedTopic(NamedTuple):
    name: str
    topic_id: UUID
    parts: list[FetchedPartition]


def encode_response(request: Request, topics: Sequence[FetchedTopic], error: Code) -> list[BufferOrFile]:
    version = request.version
    flexible = version >= FLEXIBLE_FROM
    out: list[BufferOrFile] = [b""]
    head = I32.pack(request.correlation_id) + (b"\0" if flexible else b"")
    head += _HEAD.pack(0, error, 0) if version >= SESSIONS_FROM else I32.pack(0)
    pending = bytearray(head + count(len(topics), flexible))
    for topic in topics:
        pending += topic.topic_id.bytes if version >= IDS_FROM else string(topic.name, flexible)
        pending += count(len(topic.parts), flexible)
        for part in topic.parts:
            pending += _encode_partition(part, version, flexible)
            pending += uvarint(part.size + 1) if flexible else I32.pack(part.size)
            if part.size:
                out.append(bytes(pending))
                out += part.records
                pending = bytearray()
            if flexible:
                pending += b"\0"
        if flexible:
            pending += b"\0"
    if flexible:
        pending += b"\0"
    out.append(bytes(pending))
    out[0] = I32.pack(sum(map(len, out)))
    return out


def _encode_partition(part: FetchedPartition, version: int, flexible: bool) -> bytes:
    bounds = part.bounds
    if version >= LOG_START_FROM:
        encoded = _PART_WITH_START.pack(part.number, part.error, bounds.end, bounds.stable, bounds.start)
    else:
        encoded = _PART.pack(part.number, part.error, bounds.end, bounds.stable)
    encoded += _encode_aborted(part.aborted, flexible)
    return encoded + I32.pack(part.preferred) if version >= REPLICA_FROM else encoded


def _encode_aborted(aborted: Sequence[Aborted] | None, flexible: bool) -> bytes:
    if aborted is None:
        return b"\0" if flexible else I32.pack(-1)
    end = b"\0" if flexible else b""
    encoded = b"".join(_ABORTED.pack(one.producer_id, one.offset_first) + end for one in aborted)
    return count(len(aborted), flexible) + encoded
