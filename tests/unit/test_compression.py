"""Kafka's codecs: what goes in comes out, nonsense is refused, and a few bytes never become gigabytes."""

import gzip
import os

import cramjam
import pytest

from lakestream import compression
from lakestream.compression import compressed, decompress_into, decompressed
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


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 * MiB])
def test_lz4_is_framed_as_the_java_client_demands(size: int) -> None:
    """It refuses frames whose blocks depend on each other, which is what most libraries make by default."""
    data = (os.urandom(100) + bytes(900)) * (size // 1000) + os.urandom(size % 1000)
    frame = compressed(data, "lz4")
    flags = frame[4]
    assert flags >> 6 == 1, "version 1"
    assert flags & 0x20, "independent blocks"
    assert bytes(cramjam.lz4.decompress(frame)) == data


@pytest.mark.parametrize("codec", CODECS[1:])
def test_into_room_that_is_there(codec: str) -> None:
    data = os.urandom(1000) + bytes(9000)
    out = bytearray(10_010)
    assert decompress_into(compressed(data, codec), codec, memoryview(out)) == len(data)
    assert out == data + bytes(10)
    assert decompress_into(compressed(data, codec), codec, memoryview(out)[:9999]) is None
    assert decompress_into(compressed(data, codec), codec, memoryview(bytearray())) is None
