"""Many byte ranges of one object as few reads (pure).

obstore can do this by itself, but 0.12.1 panics when one of several joined ranges starts beyond the end of the object.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.errors import OutOfRange, Rejected
from lakestream.model import Buffer, MiB, Span

GAP_BYTES_MAX = MiB
"""Ranges nearer than this are read as one: the bytes between them cost less than another request."""


class Read(NamedTuple):
    """One request, and which of the asked spans lie in it (by their place in the question)."""

    span: Span
    answers: tuple[int, ...]


def plan_reads(spans: Sequence[Span], gap_bytes_max: int = GAP_BYTES_MAX) -> list[Read]:
    """Reads that together cover all spans, none of them overlapping."""
    reads: list[Read] = []
    for place in sorted(range(len(spans)), key=lambda place: spans[place]):
        span = spans[place]
        if reads and span.start <= reads[-1].span.end + gap_bytes_max:
            last = reads[-1]
            reads[-1] = Read(Span(last.span.start, max(last.span.end, span.end)), (*last.answers, place))
        else:
            reads.append(Read(span, (place,)))
    return reads


def cut(read: Read, body: Buffer, spans: Sequence[Span], answers: list[Buffer]) -> None:
    """Give each span of the read its piece of the body, without copying."""
    view = memoryview(body)
    for place in read.answers:
        start = spans[place].start - read.span.start
        answers[place] = view[start : start + spans[place].size]


def check_spans(spans: Sequence[Span]) -> None:
    for span in spans:
        if not 0 <= span.start <= span.end:
            raise Rejected(f"bytes [{span.start}, {span.end}) are no range")


def beyond(key: str, span: Span, size: int | None = None) -> OutOfRange:
    has = "" if size is None else f", which has {size}"
    return OutOfRange(f"bytes [{span.start}, {span.end}) reach beyond object {key}{has}")
