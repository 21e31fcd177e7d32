"""Kafka's codecs over the records of a batch: used only where one must be opened, to rewrite it or to find a time."""

import gzip
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam

from lakestream.errors import Rejected
from lakestream.model import Buffer

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
        return bytes(cramjam.snappy.decompress_raw(data))
    at, parts = len(_XERIAL_HEAD), []
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size < 0 or at + 4 + size > len(data):
            raise EOFError("snappy block is cut off")
        parts.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(parts)


def _to_snappy(data: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return _XERIAL_HEAD + struct.pack(">i", len(block)) + block


def _bytes(buffer: Any) -> bytes:
    return bytes(buffer)


_Codec = Callable[[bytes], bytes]

_DECOMPRESS: Final[dict[str, _Codec]] = {
    "none": _bytes,
    "gzip": gzip.decompress,
    "snappy": _from_snappy,
    "lz4": lambda data: _bytes(cramjam.lz4.decompress(data)),
    "zstd": lambda data: _bytes(cramjam.zstd.decompress(data)),
}
_COMPRESS: Final[dict[str, _Codec]] = {
    "none": _bytes,
    "gzip": lambda data: gzip.compress(data, 6),
    "snappy": _to_snappy,
    "lz4": lambda data: _bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: _bytes(cramjam.zstd.compress(data, 3)),
}
