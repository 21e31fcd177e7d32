"""Checksums of concatenated bytes."""

import random

from crc32c import crc32c as plain
from hypothesis import given
from hypothesis import strategies as st

from lakestream.records.batch import RecordBatch, checksum_with
from lakestream.records.crc32c import combine_crcs, crc32c
from lakestream.testing.batches import make_batch


@given(st.binary(max_size=300), st.binary(max_size=5_000))
def test_combined_checksum_equals_that_of_the_concatenation(first: bytes, second: bytes) -> None:
    assert combine_crcs(plain(first), plain(second), len(second)) == plain(first + second)


def test_checksums_of_any_length_are_combined() -> None:
    rng = random.Random(7)
    for size in (0, 1, 15, 16, 255, 65_515, 1 << 20, (1 << 20) + 1, rng.randrange(1 << 22)):
        first, second = rng.randbytes(100), rng.randbytes(size)
        assert combine_crcs(plain(first), plain(second), size) == plain(first + second), size


def test_checksum_with_a_batch_equals_that_of_the_concatenation() -> None:
    before = b"bytes before the batch"
    for size in (10, 20_000, 100_000):
        data = make_batch([random.Random(size).randbytes(size)])
        assert checksum_with(plain(before), data, RecordBatch.parse(data).crc) == plain(before + data)


def test_checksum_equals_the_published_test_vector() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
