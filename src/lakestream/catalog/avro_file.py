"""Avro's container: a header that says what follows, then blocks of records, compressed. Pure.

The header has the schema of the records and whatever else the writer wants to say; Iceberg says there what a manifest
belongs to.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from lakestream.catalog.avro_types import (
    AvroSchema,
    read_bytes,
    read_long,
    reader,
    write_bytes,
    write_long,
)
from lakestream.compression import decompressed
from lakestream.errors import Corrupt, Rejected
from lakestream.model import MiB

_MAGIC: Final = b"Obj\x01"
_SYNC_SIZE: Final = 16
_SCHEMA: Final = "avro.schema"
_CODEC: Final = "avro.codec"
_DEFLATE_LEVEL: Final = 1
"""Manifests are small and many: what a better level saves is less than what it costs."""
BLOCK_BYTES_MAX: Final = 256 * MiB
"""Unpacked. A few bytes of deflate can stand for very many."""

BAD_BYTES: Final = (Corrupt, Rejected, IndexError, KeyError, TypeError, ValueError, RecursionError, zlib.error)
"""What reading bytes that are not what they should be comes to, here and in avro_types.py."""

_read_header = reader({"type": "map", "values": "bytes"})


class AvroFile(NamedTuple):
    said: Mapping[str, bytes]
    """The header's entries."""
    schema: AvroSchema
    blocks: list[tuple[int, bytes]]
    """How many records, and their bytes."""

    def records(self) -> Iterator[Any]:
        read = reader(self.schema)
        for count, data in self.blocks:
            at = 0
            for _ in range(count):
                record, at = read(data, at)
                yield record


def opened(body: bytes, location: str) -> AvroFile:
    """Corrupt: it is no Avro file, or cut off, or packed in a way that is not known here."""
    try:
        return _opened(body)
    except BAD_BYTES as error:
        raise damaged(location, error) from error


def damaged(location: str, error: Exception) -> Corrupt:
    return Corrupt(f"{location} is damaged: {error or type(error).__name__}")


def _opened(body: bytes) -> AvroFile:
    if body[:4] != _MAGIC:
        raise Corrupt("it is no Avro file")
    said, at = _read_header(body, 4)
    sync, at = body[at : at + _SYNC_SIZE], at + _SYNC_SIZE
    codec = said.get(_CODEC, b"null").decode()
    blocks: list[tuple[int, bytes]] = []
    while at < len(body):
        count, at = read_long(body, at)
        packed, at = read_bytes(body, at)
        data = _unpacked(packed, codec)
        if not 0 <= count <= len(data) or body[at : at + _SYNC_SIZE] != sync:
            raise Corrupt(f"its block {len(blocks)} is not whole")
        blocks.append((count, data))
        at += _SYNC_SIZE
    return AvroFile(said, json.loads(said[_SCHEMA]), blocks)


def written(schema: AvroSchema, said: Mapping[str, str], records: list[bytes]) -> bytes:
    """A file of one block. The mark behind it is made from the schema: the same records are the same bytes."""
    schema_text = json.dumps(schema, separators=(",", ":"))
    header = {**said, _SCHEMA: schema_text, _CODEC: "deflate"}
    sync = zlib.crc32(schema_text.encode()).to_bytes(4, "big") * 4
    out = bytearray(_MAGIC)
    write_long(out, len(header))
    for name, text in header.items():
        write_bytes(out, name.encode())
        write_bytes(out, text.encode())
    out.append(0)
    out += sync
    if records:
        packer = zlib.compressobj(_DEFLATE_LEVEL, zlib.DEFLATED, -15)
        write_long(out, len(records))
        write_bytes(out, packer.compress(b"".join(records)) + packer.flush())
        out += sync
    return bytes(out)


def _unpacked(packed: bytes, codec: str) -> bytes:
    match codec:
        case "null":
            return packed
        case "deflate":
            unpacker = zlib.decompressobj(-15)
            data = unpacker.decompress(packed, BLOCK_BYTES_MAX)
            if not unpacker.eof:
                raise Corrupt(f"a block is cut off, or unpacks to more than {BLOCK_BYTES_MAX} bytes")
            return data
        case "zstandard":
            return decompressed(packed, "zstd")
        case "snappy":  # with a checksum behind it
            return decompressed(packed[:-4], "snappy")
        case _:
            raise Corrupt(f"it is packed with {codec[:30]!r}, which is not known here")
