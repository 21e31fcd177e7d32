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
    try:
        return _DECOMPRESS[codec](bytes(records))
    except (cramjam.DecompressionError, OSError, EOFError, zlib.error, struct.error) as error:
        raise Rejected(f"record batch says {codec}, but its records cannot be decompressed: {error}") from error


def compressed(records: bytes, codec: str) -> bytes:
    return _COMPRESS[codec](records)


def _from_snappy(data: bytes) -> bytes:
    """Kafka's clients frame snappy as the Java library xerial does; some send it bare."""
    if not data.startswith(_XERIAL):
        return _from_raw_snappy(data, SIZE_MAX)
    at, parts, room = len(_XERIAL_HEAD), [], SIZE_MAX
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise EOFError("snappy block is cut off")
        parts.append(_from_raw_snappy(data[at + 4 : at + 4 + size], room))
        room -= len(parts[-1])
        at += 4 + size
    return b"".join(parts)


def _from_raw_snappy(data: bytes, room: int) -> bytes:
    """The size stands in front, seven bits a byte."""
    announced = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(data[:5]) if _goes_on(data, place))
    if announced > room:
        raise _too_large()
    return bytes(cramjam.snappy.decompress_raw(data))


def _goes_on(data: bytes, place: int) -> bool:
    return all(byte & 0x80 for byte in data[:place])


def _from_gzip(data: bytes) -> bytes:
    """One member after another, as gzip files may have them."""
    parts, room = [], SIZE_MAX
    while data:
        member = zlib.decompressobj(_GZIP_ONLY)
        parts.append(member.decompress(data, room + 1))
        room -= len(parts[-1])
        if room < 0:
            raise _too_large()
        if not member.eof:
            raise EOFError("gzip is cut off")
        data = member.unused_data.lstrip(b"\0")
    return b"".join(parts)


_GZIP_ONLY: Final = zlib.MAX_WBITS | 16


def _into_room(decompress_into: Callable[[bytes, bytearray], int]) -> "_Codec":
    """The size is not known before: try with more and more room."""

    def run(data: bytes) -> bytes:
        room = max(_ROOM_FIRST, _ROOM_GROWTH * len(data))
        while True:
            out = bytearray(min(room, SIZE_MAX))
            try:
                return bytes(memoryview(out)[: decompress_into(data, out)])
            except cramjam.DecompressionError as error:
                if _NO_ROOM not in str(error):
                    raise
                if room >= SIZE_MAX:
                    raise _too_large() from None
            room *= _ROOM_GROWTH

    return run


_NO_ROOM: Final = "failed to write whole buffer"


def _too_large() -> Rejected:
    return Rejected(f"record batch holds more than {SIZE_MAX} bytes of records: send smaller ones")


def _to_snappy(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL_HEAD + struct.pack(">i", len(block)) + block


def _bytes(buffer: Any) -> bytes:
    return bytes(buffer)


_Codec = Callable[[bytes], bytes]

_DECOMPRESS: Final[dict[str, _Codec]] = {
    "none": _bytes,
    "gzip": _from_gzip,
    "snappy": _from_snappy,
    "lz4": _into_room(cramjam.lz4.decompress_into),
    "zstd": _into_room(cramjam.zstd.decompress_into),
}
_COMPRESS: Final[dict[str, _Codec]] = {
    "none": _bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": _to_snappy,
    "lz4": lambda data: _bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: _bytes(cramjam.zstd.compress(data, 3)),
}
