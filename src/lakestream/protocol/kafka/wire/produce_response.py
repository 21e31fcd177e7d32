"""Hand-written encoder of Produce responses, which are frequent and small.

A test compares every version with the generated writer.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.wire.codec import Request
from lakestream.protocol.kafka.wire.primitives import I32, count, nullable_string, string

LOG_START_FROM, RECORD_ERRORS_FROM, FLEXIBLE_FROM, IDS_FROM = 5, 8, 9, 13

_HEAD = struct.Struct(">ii")
_PART = struct.Struct(">ihqq")
_PART_WITH_START = struct.Struct(">ihqqq")


class ProducedPartition(NamedTuple):
    """The result of one partition's batch."""

    number: int
    error: Code
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """The numbers of the invalid records, each with its reason."""
    message: str | None = None


class ProducedTopic(NamedTuple):
    name: str | None
    topic_id: UUID | None
    parts: list[ProducedPartition]


def encode_response(request: Request, topics: Sequence[ProducedTopic]) -> bytes:
    """Encodes the whole response, with its size in front."""
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
        out += [_encode_partition(part, version, flexible, end) for part in topic.parts]
        out.append(end)
    out += (b"\0\0\0\0", end)  # not throttled
    body = b"".join(out)
    return _HEAD.pack(len(body) + I32.size, request.correlation_id) + body


def _encode_partition(part: ProducedPartition, version: int, flexible: bool, end: bytes) -> bytes:
    if version < LOG_START_FROM:
        return _PART.pack(part.number, part.error, part.base_offset, part.append_ms)
    encoded = _PART_WITH_START.pack(part.number, part.error, part.base_offset, part.append_ms, part.log_start)
    if version < RECORD_ERRORS_FROM:
        return encoded
    if part.message is None and not part.record_errors and flexible:
        return encoded + b"\1\0\0"  # no record errors, no message, no tagged fields
    errors = b"".join(I32.pack(index) + nullable_string(reason, flexible) + end for index, reason in part.record_errors)
    return b"".join(
        (encoded, count(len(part.record_errors), flexible), errors, nullable_string(part.message, flexible), end)
    )
