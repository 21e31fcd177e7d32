"""Kafka's codecs over the records of a batch: used only where one must be opened, to rewrite it or to find a time.

A few bytes can announce gigabytes, so what comes out is bounded too.
"""

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam

from lakestream.errors import Rejected
from lakestream.model import Buffer, MiB

SIZE_MAX: Final = 256 * MiB
"""Of the records of one batch, decompressed."""
_ROOM_FIRST: Final = 1 * MiB
_ROOM_GROWTH: Final = 4

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD: Final = _XERIAL + struct.pack(">ii", 1, 1)


def decompressed(records: Buffer, codec: str) -> bytes:
    """Rejected: the bytes are not what the batch's header says."""
    if codec == "none":
        return bytes(records)
    # The size is not known before: try with more and more room.
    room = max(_ROOM_FIRST, _ROOM_GROWTH * len(records))
    while True:
        out = memoryview(bytearray(min(room, SIZE_MAX)))
        size = decompress_into(records, codec, out)
        if size is not None:
            return bytes(out[:size])
        if room >= SIZE_MAX:
            raise Rejected(f"record batch holds more than {SIZE_MAX} bytes of records: send smaller ones")
        room *= _ROOM_GROWTH


def decompress_into(records: Buffer, codec: str, out: memoryview) -> int | None:
    """How many bytes came out; None: they need more room. Rejected: they are not what the batch's header says."""
    try:
        return _DECOMPRESS[codec](memoryview(records), out)
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error, struct.error) as error:
        raise Rejected(f"record batch says {codec}, but its records cannot be decompressed: {error}") from error


def compressed(records: bytes, codec: str) -> bytes:
    return _COMPRESS[codec](records)


def _from_snappy(data: memoryview, out: memoryview) -> int | None:
    """Kafka's clients frame snappy as the Java library xerial does; some send it bare."""
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _from_raw_snappy(data, out)
    at, made = len(_XERIAL_HEAD), 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise EOFError("snappy block is cut off")
        size_made = _from_raw_snappy(data[at + 4 : at + 4 + size], out[made:])
        if size_made is None:
            return None
        made += size_made
        at += 4 + size
    return made


def _from_raw_snappy(data: memoryview, out: memoryview) -> int | None:
    """The size stands in front, seven bits a byte."""
    announced = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(data[:5]) if _goes_on(data, place))
    if announced > len(out):
        return None
    return int(cramjam.snappy.decompress_raw_into(data, out))


def _goes_on(data: memoryview, place: int) -> bool:
    return all(byte & 0x80 for byte in data[:place])


def _from_gzip(data: Buffer, out: memoryview) -> int | None:
    """One member after another, as gzip files may have them."""
    made = 0
    while data:
        member = zlib.decompressobj(_GZIP_ONLY)
        part = member.decompress(data, len(out) - made + 1)
        if made + len(part) > len(out):
            return None
        if not member.eof:
            raise EOFError("gzip is cut off")
        out[made : made + len(part)] = part
        made += len(part)
        data = member.unused_data.lstrip(b"\0")
    return made


_GZIP_ONLY: Final = zlib.MAX_WBITS | 16


def _into_room(decompress_into: Callable[[memoryview, memoryview], int]) -> "_Decompress":
    def run(data: memoryview, out: memoryview) -> int | None:
        try:
            return decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if _NO_ROOM not in str(error):
                raise
            return None

    return run


_NO_ROOM: Final = "failed to write whole buffer"


def _to_snappy(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL_HEAD + struct.pack(">i", len(block)) + block


def _to_lz4(data: bytes) -> bytes:
    """As the Java client frames it. It also reads only that: blocks that know nothing of each other."""
    parts = [_LZ4_HEAD]
    for start in range(0, len(data), _LZ4_BLOCK):
        plain = data[start : start + _LZ4_BLOCK]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(plain) | _LZ4_STORED), plain)
    return b"".join((*parts, _LZ4_END))


_LZ4_HEAD: Final = bytes.fromhex("04224d18 60 40 82")
"""Magic; version 1, independent blocks, no checksums; blocks of 64 KiB; the check of the two bytes before."""
_LZ4_BLOCK: Final = 64 * 1024
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)


def _bytes(buffer: Any) -> bytes:
    return bytes(buffer)


_Decompress = Callable[[memoryview, memoryview], int | None]
_Compress = Callable[[bytes], bytes]

_DECOMPRESS: Final[dict[str, _Decompress]] = {
    "gzip": _from_gzip,
    "snappy": _from_snappy,
    "lz4": _into_room(cramjam.lz4.decompress_into),
    "zstd": _into_room(cramjam.zstd.decompress_into),
}
_COMPRESS: Final[dict[str, _Compress]] = {
    "none": _bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": _to_snappy,
    "lz4": _to_lz4,
    "zstd": lambda data: _bytes(cramjam.zstd.compress(data, 3)),
}
