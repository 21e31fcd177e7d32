"""Kafka's codecs: round trips, invalid bytes are rejected, and the decompressed size is limited."""

import gzip
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cramjam
import pytest

from lakestream.errors import BatchTooLarge, InvalidRecords, Rejected
from lakestream.model import MiB
from lakestream.records import compression
from lakestream.records.compression import (
    _DecompressionBuffer,
    compressed,
    decompress_into,
    decompressed,
    with_decompressed,
)

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("data", [b"", b"a", os.urandom(5000), bytes(9 * MiB)], ids=["empty", "one", "random", "zeros"])
def test_decompressed_restores_compressed_records(codec: str, data: bytes) -> None:
    assert decompressed(compressed(data, codec), codec) == data


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("cut", [1, 5, 30])
def test_truncated_records_are_rejected(codec: str, cut: int) -> None:
    with pytest.raises(Rejected, match=f"announces {codec}, but its records cannot be decompressed"):
        decompressed(compressed(os.urandom(100), codec)[:-cut], codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_bytes_of_another_format_are_rejected(codec: str) -> None:
    with pytest.raises(Rejected):
        decompressed(b"\x01\x02\x03 this is not compressed", codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompressed_size_is_limited(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compressed(bytes(4 * MiB), codec)
    monkeypatch.setattr(compression._thread, "own", _DecompressionBuffer(1 * MiB))
    for size, fits in ((4 * MiB, True), (4 * MiB - 1, False)):
        monkeypatch.setattr(compression._ThreadBuffers, "shared", _DecompressionBuffer(size))
        if fits:
            assert decompressed(bomb, codec) == bytes(4 * MiB)
        else:
            with pytest.raises(BatchTooLarge, match="record batch has more than 268435456 bytes of records"):
                decompressed(bomb, codec)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_pages_are_returned_after_a_large_batch(codec: str) -> None:
    bomb = compressed(bytes(200 * MiB), codec)
    assert with_decompressed(bomb, codec, len) == 200 * MiB
    before = _resident()
    for _ in range(3):
        with_decompressed(bomb, codec, len)
        with pytest.raises(Rejected):
            with_decompressed(bomb[: len(bomb) // 2], codec, len)
    assert _resident() - before < 40 * MiB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_threads_decompress_concurrently() -> None:
    data = [os.urandom(1000) * 1000 for _ in range(8)]
    with ThreadPoolExecutor(4) as threads:
        packed = [compressed(one, "zstd") for one in data]
        assert list(threads.map(lambda one: decompressed(one, "zstd"), packed * 20)) == data * 20


def test_snappy_is_decompressed_without_a_frame() -> None:
    data = b"hello " * 100
    assert decompressed(bytes(cramjam.snappy.compress_raw(data)), "snappy") == data
    with pytest.raises(Rejected):
        decompressed(b"\xff\xff\xff\xff\x0f" + b"a", "snappy")


@pytest.mark.parametrize("head", [b"", compressed(b"", "snappy")[:16] + b"\0\0\0\x08"], ids=["bare", "xerial"])
def test_snappy_size_of_six_bytes_is_rejected(head: bytes) -> None:
    """The Java client reads at most five bytes; the library reads ten."""
    with pytest.raises(InvalidRecords, match="snappy block has a size of more than five bytes"):
        decompressed(head + b"\x81\x80\x80\x80\x80\0\0a", "snappy")


def test_gzip_of_several_members_is_decompressed() -> None:
    assert decompressed(gzip.compress(b"one ") + gzip.compress(b"two") + b"\0\0", "gzip") == b"one two"


def test_more_than_100_gzip_members_are_rejected() -> None:
    member = gzip.compress(b"")
    assert decompressed(member * 100, "gzip") == b""
    with pytest.raises(InvalidRecords, match="gzip has more than 100 members"):
        decompressed(member * 50_000, "gzip")


def test_snappy_blocks_of_1_kib_of_the_kafka_0_11_java_producer_are_accepted() -> None:
    """All bytes are equal, so each block is as small as snappy can make it."""
    plain = bytes(1024)
    block = bytes(cramjam.snappy.compress_raw(plain))
    framed = compressed(b"", "snappy")[:16] + (len(block).to_bytes(4, "big") + block) * 10_000
    assert decompressed(framed, "snappy") == plain * 10_000


def test_too_many_small_snappy_blocks_are_rejected() -> None:
    head, block = compressed(b"", "snappy")[:16], b"\0\0\0\x03" + bytes(cramjam.snappy.compress_raw(b"a"))
    assert decompressed(head + block * 1000, "snappy") == b"a" * 1000
    with pytest.raises(InvalidRecords, match="snappy has more than 15000 blocks in 700016 bytes"):
        decompressed(head + block * 100_000, "snappy")


@pytest.mark.parametrize("size", [0, 1, 70_000, 3 * MiB])
def test_lz4_frame_can_be_read_by_the_java_client(size: int) -> None:
    """The Java client rejects frames with linked blocks, the default of most libraries."""
    data = (os.urandom(100) + bytes(900)) * (size // 1000) + os.urandom(size % 1000)
    frame = compressed(data, "lz4")
    flags = frame[4]
    assert flags >> 6 == 1, "version 1"
    assert flags & 0x20, "independent blocks"
    assert bytes(cramjam.lz4.decompress(frame)) == data


def lz4_frame(head: bytes, blocks: list[bytes]) -> bytes:
    return head + b"".join(len(block).to_bytes(4, "little") + block for block in blocks) + bytes(4)


@pytest.mark.parametrize("head", compression._LZ4_BLOCKS)
@pytest.mark.parametrize("over", [0, 1])
def test_lz4_blocks_are_decompressed_as_by_the_frame_decoder(head: bytes, over: int) -> None:
    size = compression._LZ4_BLOCKS[head]
    plain = [(os.urandom(100) + bytes(900)) * 5000, bytes(7)]
    plain = [(plain[0] * 2)[: size + over], plain[1]]
    frame = lz4_frame(head, [bytes(cramjam.lz4.compress_block(block, store_size=False)) for block in plain])
    if over:  # a block is larger than the head announces
        with pytest.raises(InvalidRecords):
            decompressed(frame, "lz4")
    else:
        assert decompressed(frame, "lz4") == b"".join(plain) == bytes(cramjam.lz4.decompress(frame))
    assert len(_from_lz4_blocks_into(frame, size)) == (0 if over else size + 7)


def _from_lz4_blocks_into(frame: bytes, block_max: int) -> bytes:
    out = bytearray(3 * block_max)
    return bytes(out[: compression._from_lz4_blocks(memoryview(frame), memoryview(out), block_max) or 0])


def test_damaged_lz4_blocks_are_rejected() -> None:
    frame = compressed((os.urandom(100) + bytes(900)) * 200, "lz4")
    for damaged in (frame[:-1], frame[:-4], frame[:500], frame[:11] + b"\xff" * 40 + frame[51:], frame[:9]):
        with pytest.raises(InvalidRecords):
            decompressed(damaged, "lz4")


def test_lz4_frame_of_many_small_blocks_is_decompressed() -> None:
    block = bytes(cramjam.lz4.compress_block(b"a", store_size=False))
    assert decompressed(lz4_frame(compressed(b"", "lz4")[:7], [block] * 10_000), "lz4") == b"a" * 10_000


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompress_into_a_buffer_returns_none_if_it_is_too_small(codec: str) -> None:
    data = os.urandom(1000) + bytes(9000)
    out = bytearray(10_010)
    assert decompress_into(compressed(data, codec), codec, memoryview(out)) == len(data)
    assert out == data + bytes(10)
    assert decompress_into(compressed(data, codec), codec, memoryview(out)[:9999]) is None
    assert decompress_into(compressed(data, codec), codec, memoryview(bytearray())) is None
