"""Kafka's codecs: what goes in comes out, nonsense is refused, and a few bytes never become gigabytes."""

import gzip
import os

import cramjam
import pytest

from lakestream import compression
from lakestream.compression import compressed, decompressed
from lakestream.errors import Rejected
from lakestream.model import MiB

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"a", os.urandom(5000), bytes(9 * MiB)], ids=["empty", "one", "random", "zeros"])
def test_what_goes_in_comes_out(codec: str, data: bytes) -> None:
    assert decompressed(compressed(data, codec), codec) == data


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("cut", [1, 5, 30])
def test_what_is_cut_off_is_refused(codec: str, cut: int) -> None:
    with pytest.raises(Rejected, match=f"says {codec}, but its records cannot be decompressed"):
        decompressed(compressed(os.urandom(100), codec)[:-cut], codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_nonsense_is_refused(codec: str) -> None:
    with pytest.raises(Rejected):
        decompressed(b"\x01\x02\x03 this is nothing at all", codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_comes_out_is_bounded(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compressed(bytes(4 * MiB), codec)
    monkeypatch.setattr(compression, "SIZE_MAX", 4 * MiB)
    assert len(decompressed(bomb, codec)) == 4 * MiB
    monkeypatch.setattr(compression, "SIZE_MAX", 4 * MiB - 1)
    with pytest.raises(Rejected, match="record batch holds more than 4194303 bytes of records"):
        decompressed(bomb, codec)


def test_snappy_without_a_frame() -> None:
    data = b"hello " * 100
    assert decompressed(bytes(cramjam.snappy.compress_raw(data)), "snappy") == data
    with pytest.raises(Rejected):
        decompressed(b"\xff\xff\xff\xff\x0f" + b"a", "snappy")


def test_gzip_of_several_members() -> None:
    assert decompressed(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0", "gzip") == b"one two"
