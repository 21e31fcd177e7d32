"""Reads of several ranges are joined, and each range gets its bytes."""

import random
from itertools import pairwise

from lakestream.model import Buffer, Span
from lakestream.storage.range_reads import RangeRead, plan_reads, slice_spans


def test_ranges_with_small_gaps_become_one_read() -> None:
    spans = [Span(100, 110), Span(0, 10), Span(15, 20), Span(105, 120)]
    assert plan_reads(spans, gap_bytes_max=5) == [RangeRead(Span(0, 20), (1, 2)), RangeRead(Span(100, 120), (0, 3))]
    assert plan_reads(spans, gap_bytes_max=80) == [RangeRead(Span(0, 120), (1, 2, 0, 3))]
    assert plan_reads([]) == []


def test_each_span_gets_its_bytes_from_coalesced_reads() -> None:
    rng, whole = random.Random(5), bytes(range(256))
    for _ in range(300):
        bounds = [sorted((rng.randrange(257), rng.randrange(257))) for _ in range(rng.randrange(8))]
        spans = [Span(start, end) for start, end in bounds]
        slices: list[Buffer] = [b""] * len(spans)
        reads = plan_reads(spans, rng.randrange(60))
        for read in reads:
            slice_spans(read, whole[read.span.start : read.span.end], spans, slices)
        assert [bytes(piece) for piece in slices] == [whole[span.start : span.end] for span in spans]
        assert all(left.span.end < right.span.start for left, right in pairwise(reads))
