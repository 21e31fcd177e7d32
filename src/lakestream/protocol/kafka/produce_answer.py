"""Produce answers, written by hand: one per request, however small the request was.

A test holds every version against the generated writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from lakestream.protocol.kafka.codec import Request
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.words import I32, count, nullable_string, string

LOG_START_FROM, RECORD_ERRORS_FROM, FLEXIBLE_FROM, IDS_FROM = 5, 8, 9, 13

_HEAD = struct.Struct(">ii")
_PART = struct.Struct(">ihqq")
_PART_WITH_START = struct.Struct(">ihqqq")


class Stored(NamedTuple):
    """What became of one partition's batch."""

    number: int
    error: Code
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """Which records are wrong, and why."""
    message: str | None = None


class StoredTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    parts: list[Stored]


def written(request: Request, topics: Sequence[StoredTopic]) -> bytes:
    """The whole answer, its size in front."""
    version = request.version
    flexible = version >= FLEXIBLE_FROM
    end = b"\0" if flexible else b""
    out = [end, count(len(topics), flexible)]
    for topic in topics:
        if version >= IDS_FROM:
            out.append((topic.topic_id or UUID(int=0)).bytes)
        else:
            out.append(string(topic.name or "", flexible))
        out.append(count(len(topic.parts), flexible))
        out += [_described(part, version, flexible, end) for part in topic.parts]
        out.append(end)
    out += (b"\0\0\0\0", end)  # not throttled
    body = b"".join(out)
    return _HEAD.pack(len(body) + I32.size, request.correlation_id) + body


def _described(part: Stored, version: int, flexible: bool, end: bytes) -> bytes:
    if version < LOG_START_FROM:
        return _PART.pack(part.number, part.error, part.base_offset, part.append_ms)
    said = _PART_WITH_START.pack(part.number, part.error, part.base_offset, part.append_ms, part.log_start)
    if version < RECORD_ERRORS_FROM:
        return said
    if part.message is None and not part.record_errors and flexible:
        return said + b"\1\0\0"  # no record is wrong, no message, nothing tagged
    errors = b"".join(I32.pack(index) + nullable_string(why, flexible) + end for index, why in part.record_errors)
    return b"".join(
        (said, count(len(part.record_errors), flexible), errors, nullable_string(part.message, flexible), end)
    )
