"""Kafka's compression codecs, applied to the records of a batch.

A few bytes can decompress to gigabytes, so every function bounds its output.
"""

import gzip
import mmap
import struct
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import cramjam
from isal import isal_zlib

from lakestream.errors import BatchTooLarge, InvalidRecords
from lakestream.model import Buffer, KiB, MiB

SIZE_MAX: Final = 256 * MiB
"""Maximum size of the records of one batch after decompression."""
_BUFFER_SIZE: Final = 32 * MiB
_BUFFER_SIZE_KEPT: Final = 4 * MiB

_IsalError: Final = cast(type[Exception], isal_zlib.IsalError)  # an instance in its stub

T = TypeVar("T")

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL + struct.pack(">ii", 1, 1)


def decompressed(records: Buffer, codec: str) -> bytes:
    """Returns the decompressed records of a batch.

    Raises InvalidRecords if the bytes are not compressed with this codec, BatchTooLarge if they decompress to more than
    `SIZE_MAX`.
    """
    return with_decompressed(records, codec, bytes)


def with_decompressed(records: Buffer, codec: str, use: Callable[[memoryview], T]) -> T:
    """Decompresses the records of a batch into reused memory, and returns the result of `use`.

    The view that `use` receives is valid only until it returns. Each thread has its own buffer. Larger batches take
    turns with one large buffer, so that they do not use its memory once per thread. Raises as `decompressed`, and
    NeedsLargeBuffer inside of `without_large_buffer`.
    """
    if codec == "none":
        return use(memoryview(records))
    for buffer in (_thread.own, _thread.shared):
        if buffer is _thread.shared and not _thread.may_wait:
            raise NeedsLargeBuffer
        with buffer:
            size = buffer.fill(records, codec)
            if size is not None:
                return use(buffer.view[:size])
    raise BatchTooLarge(
        f"record batch has more than {SIZE_MAX} bytes of records after decompression: send smaller batches"
    )


class NeedsLargeBuffer(Exception):
    """The records of a batch fit only into the large buffer."""


def without_large_buffer(work: Callable[[], T]) -> T:
    """Runs work that must not wait for the large buffer. Raises NeedsLargeBuffer if the work needs it."""
    _thread.may_wait = False
    try:
        return work()
    finally:
        _thread.may_wait = True


class _DecompressionBuffer:
    """Memory whose pages are allocated by writes, and released after a large batch. For one user at a time."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._lock = threading.RLock()
        self._used = 0
        self.view = memoryview(self._memory)

    def fill(self, records: Buffer, codec: str) -> int | None:
        """Returns the size after decompression, or None if the buffer is too small."""
        self._used = len(self.view)
        size = decompress_into(records, codec, self.view)
        if size is not None:
            self._used = size
        return size

    def __enter__(self) -> "_DecompressionBuffer":
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self._used > _BUFFER_SIZE_KEPT:
            self._memory.madvise(mmap.MADV_DONTNEED)
        self._lock.release()


class _ThreadBuffers(threading.local):
    shared = _DecompressionBuffer(SIZE_MAX)

    def __init__(self) -> None:
        self.own = _DecompressionBuffer(_BUFFER_SIZE)
        self.may_wait = True


_thread: Final = _ThreadBuffers()


def decompress_into(records: Buffer, codec: str, out: memoryview) -> int | None:
    """Returns the size after decompression, or None if `out` is too small.

    Raises InvalidRecords if the bytes are not compressed with this codec.
    """
    try:
        return _DECOMPRESS[codec](memoryview(records), out)
    except (cramjam.DecompressionError, OSError, EOFError, _IsalError, struct.error) as error:
        reason = f"record batch announces {codec}, but its records cannot be decompressed: {error}"
        raise InvalidRecords({}, reason) from error


def compressed(records: Buffer, codec: str) -> bytes:
    return _COMPRESS[codec](records)


def _from_snappy(data: memoryview, out: memoryview) -> int | None:
    """Kafka's clients frame snappy like the Java library xerial. Some clients send it without a frame."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _from_raw_snappy(data, out)
    at, size_out, blocks = len(_XERIAL_HEAD), 0, 0
    while at < len(data):
        blocks += 1
        if blocks > _XERIAL_BLOCKS_MIN + len(data) // _XERIAL_BLOCK_BYTES_MIN:
            raise EOFError(f"snappy has more than {blocks - 1} blocks in {len(data)} bytes")
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise EOFError("snappy block is truncated")
        block_size = _from_raw_snappy(data[at + 4 : at + 4 + size], out[size_out:])
        if block_size is None:
            return None
        size_out += block_size
        at += 4 + size
    return size_out


_XERIAL_BLOCKS_MIN: Final = 1_000
_XERIAL_BLOCK_BYTES_MIN: Final = 50
"""On average. Producers write blocks of 32 KiB before compression, the Java producer of Kafka 0.11 of 1 KiB, which take
at least 52 bytes. Each block costs a call from Python."""


def _from_raw_snappy(data: memoryview, out: memoryview) -> int | None:
    """Decompresses a raw snappy block, which begins with its decompressed size as a varint."""
    if len(data) >= 5 and _varint_continues(data, 5):
        raise EOFError("snappy block has a size of more than five bytes")
    size = sum((byte & 0x7F) << (7 * at) for at, byte in enumerate(data[:5]) if _varint_continues(data, at))
    if size > len(out):
        return None
    return int(cramjam.snappy.decompress_raw_into(data, out))


def _varint_continues(data: memoryview, count: int) -> bool:
    """Returns whether the varint has more than `count` bytes."""
    return all(byte & 0x80 for byte in data[:count])


def _from_gzip(data: Buffer, out: memoryview) -> int | None:
    """Decompresses all members, which a gzip file may have several of, in chunks."""
    size = 0
    for _ in range(_GZIP_MEMBERS_MAX):
        if not data:
            return size
        member = isal_zlib.decompressobj(_GZIP_ONLY)
        while not member.eof:
            chunk = member.decompress(data, min(_GZIP_CHUNK, len(out) - size + 1))
            data = member.unconsumed_tail
            if size + len(chunk) > len(out):
                return None
            if not chunk and not member.eof:
                raise EOFError("gzip is truncated")
            out[size : size + len(chunk)] = chunk
            size += len(chunk)
        data = member.unused_data.lstrip(b"\0")
    if data:
        raise EOFError(f"gzip has more than {_GZIP_MEMBERS_MAX} members")
    return size


_GZIP_CHUNK: Final = 8 * MiB
_GZIP_MEMBERS_MAX: Final = 100
"""Producers write one. Each costs a copy of all bytes after it."""
_GZIP_ONLY: Final = isal_zlib.MAX_WBITS | 16


def _from_lz4(data: memoryview, out: memoryview) -> int | None:
    size = _from_lz4_blocks(data, out, _LZ4_BLOCKS.get(bytes(data[: len(_LZ4_HEAD)]), 0))
    return _from_lz4_frame(data, out) if size is None else size


def _from_lz4_blocks(data: memoryview, out: memoryview, block_max: int) -> int | None:
    """Decompresses the blocks of a frame where they belong; the library's frame decoder copies each of them twice.

    Returns None if the frame decoder has to decide: about any other frame than a producer's, and about any problem.
    """
    at, filled = len(_LZ4_HEAD), 0
    for _ in range(len(out) // block_max + 1 if block_max else 0):
        if at + _LZ4_BLOCK_SIZE.size > len(data):
            return None
        (size,) = _LZ4_BLOCK_SIZE.unpack_from(data, at)
        at += _LZ4_BLOCK_SIZE.size
        if size == 0:
            return filled if at == len(data) else None
        block = data[at : at + (size & ~_LZ4_STORED)]
        at += size & ~_LZ4_STORED
        if at > len(data) or filled + block_max > len(out) or len(block) > block_max:
            return None
        if size & _LZ4_STORED:
            out[filled : filled + len(block)] = block
            filled += len(block)
        else:
            try:
                filled += cramjam.lz4.decompress_block_into(block, out[filled : filled + block_max], block_max)
            except cramjam.DecompressionError:
                return None
    return None


def _none_if_buffer_too_small(decompress_into: Callable[[memoryview, memoryview], int]) -> "_Decompress":
    def run(data: memoryview, out: memoryview) -> int | None:
        try:
            return decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _TOO_SMALL not in str(error):
                raise
            return None

    return run


_TOO_SMALL: Final = "failed to write whole buffer"


def _to_snappy(data: Buffer) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL_HEAD + struct.pack(">i", len(block)) + block


def _to_lz4(data: Buffer) -> bytes:
    """Writes the frame that the Java client writes. The Java client reads only independent blocks."""
    parts: list[Buffer] = [_LZ4_HEAD]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    return b"".join((*parts, _LZ4_END))


_LZ4_HEAD: Final = bytes.fromhex("04224d18 60 40 82")
"""Magic; version 1, independent blocks, no checksums; blocks of 64 KiB; checksum of the two bytes before."""
_LZ4_BLOCK: Final = 64 * KiB
_LZ4_BLOCKS: Final = {
    _LZ4_HEAD: _LZ4_BLOCK,
    bytes.fromhex("04224d18 60 50 fb"): 256 * KiB,
    bytes.fromhex("04224d18 60 60 51"): 1 * MiB,
    bytes.fromhex("04224d18 60 70 73"): 4 * MiB,
}
"""The maximum block sizes, by the head that announces them."""
_LZ4_BLOCK_SIZE: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)


def _bytes(buffer: Any) -> bytes:
    return bytes(buffer)


_Decompress = Callable[[memoryview, memoryview], int | None]
_Compress = Callable[[Buffer], bytes]

_from_lz4_frame: Final = _none_if_buffer_too_small(cramjam.lz4.decompress_into)

_DECOMPRESS: Final[dict[str, _Decompress]] = {
    "gzip": _from_gzip,
    "snappy": _from_snappy,
    "lz4": _from_lz4,
    "zstd": _none_if_buffer_too_small(cramjam.zstd.decompress_into),
}
_COMPRESS: Final[dict[str, _Compress]] = {
    "none": _bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": _to_snappy,
    "lz4": _to_lz4,
    "zstd": lambda data: _bytes(cramjam.zstd.compress(data, 3)),
}
