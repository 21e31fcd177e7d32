"""Coalesces byte ranges of one object into few reads (pure).

obstore has this function too, but 0.12.1 panics if one of several coalesced ranges starts beyond the object's end.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.errors import OutOfRange, Rejected
from lakestream.model import Buffer, MiB, Span

GAP_BYTES_MAX = MiB
"""Ranges with smaller gaps are read together: the bytes between them cost less than another request."""


class RangeRead(NamedTuple):
    """One read, and the indexes of the requested spans that it covers."""

    span: Span
    indexes: tuple[int, ...]


def plan_reads(spans: Sequence[Span], gap_bytes_max: int = GAP_BYTES_MAX) -> list[RangeRead]:
    """Returns reads that together cover all spans and do not overlap."""
    reads: list[RangeRead] = []
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        span = spans[index]
        if reads and span.start <= reads[-1].span.end + gap_bytes_max:
            last = reads[-1]
            reads[-1] = RangeRead(Span(last.span.start, max(last.span.end, span.end)), (*last.indexes, index))
        else:
            reads.append(RangeRead(span, (index,)))
    return reads


def slice_spans(read: RangeRead, body: Buffer, spans: Sequence[Span], results: list[Buffer]) -> None:
    """Sets the result of each span of the read to a view of its bytes in the body."""
    view = memoryview(body)
    for index in read.indexes:
        start = spans[index].start - read.span.start
        results[index] = view[start : start + spans[index].size]


def check_spans(spans: Sequence[Span]) -> None:
    for span in spans:
        if not 0 <= span.start <= span.end:
            raise Rejected(f"invalid byte range [{span.start}, {span.end})")


def beyond(key: str, span: Span, size: int) -> OutOfRange:
    return OutOfRange(f"byte range [{span.start}, {span.end}) ends beyond object {key}, which has {size} bytes")
