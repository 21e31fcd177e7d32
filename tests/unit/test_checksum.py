"""Checksums of bytes behind one another."""

import random

from crc32c import crc32c as plain
from hypothesis import given
from hypothesis import strategies as st

from lakestream.batch import RecordBatch, checksum_with
from lakestream.checksum import crc32c, joined
from lakestream.testing.batches import make_batch


@given(st.binary(max_size=300), st.binary(max_size=5_000))
def test_a_joined_checksum_is_that_of_the_whole(first: bytes, second: bytes) -> None:
    assert joined(plain(first), plain(second), len(second)) == plain(first + second)


def test_it_joins_any_length() -> None:
    luck = random.Random(7)
    for size in (0, 1, 15, 16, 255, 65_515, 1 << 20, (1 << 20) + 1, luck.randrange(1 << 22)):
        first, second = luck.randbytes(100), luck.randbytes(size)
        assert joined(plain(first), plain(second), size) == plain(first + second), size


def test_a_batch_is_added_without_reading_its_records() -> None:
    before = b"what came before"
    for size in (10, 20_000, 100_000):
        data = make_batch([random.Random(size).randbytes(size)])
        assert checksum_with(plain(before), data, RecordBatch.parse(data).crc) == plain(before + data)


def test_ours_is_the_same_as_anybodys() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
