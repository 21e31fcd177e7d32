"""Fetch answers, written by hand: a list of buffers, in which the record bytes are the log's own.

The one answer where the size of the records decides what it costs, so nothing of them is copied or joined.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from lakestream.data.log.fold import Aborted
from lakestream.data.log.log import Bounds
from lakestream.filed import Piece
from lakestream.model import PartitionId
from lakestream.protocol.kafka.codec import Request
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.words import I32, count, string, uvarint

SESSIONS_FROM, LOG_START_FROM, REPLICA_FROM, FLEXIBLE_FROM, IDS_FROM = 7, 5, 11, 12, 13
NO_REPLICA: Final = -1

_PART = struct.Struct(">ihqq")
_PART_WITH_START = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_HEAD = struct.Struct(">ihi")


class Found(NamedTuple):
    """What a read of one partition gave."""

    number: int
    error: Code
    bounds: Bounds
    partition: PartitionId | None = None
    records: Sequence[Piece] = ()
    size: int = 0
    aborted: Sequence[Aborted] | None = None
    """None: the reader did not ask for committed records only."""
    preferred: int = NO_REPLICA
    has_more: bool = False
    """Behind the records, to be had at once."""


class FoundTopic(NamedTuple):
    name: str
    topic_id: UUID
    parts: list[Found]


def written(request: Request, topics: Sequence[FoundTopic], error: Code) -> list[Piece]:
    version = request.version
    flexible = version >= FLEXIBLE_FROM
    out: list[Piece] = [b""]
    head = I32.pack(request.correlation_id) + (b"\0" if flexible else b"")
    head += _HEAD.pack(0, error, 0) if version >= SESSIONS_FROM else I32.pack(0)
    pending = bytearray(head + count(len(topics), flexible))
    for topic in topics:
        pending += topic.topic_id.bytes if version >= IDS_FROM else string(topic.name, flexible)
        pending += count(len(topic.parts), flexible)
        for part in topic.parts:
            pending += _described(part, version, flexible)
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


def _described(part: Found, version: int, flexible: bool) -> bytes:
    bounds = part.bounds
    if version >= LOG_START_FROM:
        said = _PART_WITH_START.pack(part.number, part.error, bounds.end, bounds.stable, bounds.start)
    else:
        said = _PART.pack(part.number, part.error, bounds.end, bounds.stable)
    said += _aborted(part.aborted, flexible)
    return said + I32.pack(part.preferred) if version >= REPLICA_FROM else said


def _aborted(aborted: Sequence[Aborted] | None, flexible: bool) -> bytes:
    if aborted is None:
        return b"\0" if flexible else I32.pack(-1)
    end = b"\0" if flexible else b""
    said = b"".join(_ABORTED.pack(one.producer_id, one.offset_first) + end for one in aborted)
    return count(len(aborted), flexible) + said
