"""Avro's object container files: a header, then compressed blocks of records. Pure.

The header has the schema of the records and further metadata. Iceberg stores the table schema and the partition spec of
a manifest there.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from lakestream.catalog.manifests.avro_codec import AvroSchema, read_bytes, read_long, reader, write_bytes, write_long
from lakestream.errors import Corrupt, Rejected
from lakestream.model import MiB
from lakestream.records.compression import decompressed

_MAGIC: Final = b"Obj\x01"
_SYNC_SIZE: Final = 16
_SCHEMA: Final = "avro.schema"
_CODEC: Final = "avro.codec"
_DEFLATE_LEVEL: Final = 1
"""Manifests are small and many, so a higher level costs more than it saves."""
UNPACKED_BYTES_MAX: Final = 256 * MiB
"""Of all blocks together, decompressed. A few bytes of deflate may decompress to very many."""

RECORDS_MAX: Final = 500_000
"""Of one file. Engines write some ten thousand entries per manifest. A record may be 16 bytes in the file, and takes
some hundred in memory."""
_HEADER: Final = {"type": "map", "values": "bytes"}
HEADER_ENTRIES_MAX: Final = 1_000
SCHEMA_BYTES_MAX: Final = MiB
"""Of the records' schema, which grows only with the fields of the partition spec. The schema of the table is not
parsed."""
SCHEMA_PARTS_MAX: Final = 20_000
"""Types, fields and lists of them: for each a reader is made."""

BAD_BYTES: Final = (
    Corrupt,
    Rejected,
    AttributeError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
    RecursionError,
    zlib.error,
)
"""The exceptions that reading invalid bytes can raise, here and in avro_codec.py."""


class AvroFile(NamedTuple):
    metadata: Mapping[str, bytes]
    """Of the header."""
    schema: AvroSchema
    blocks: list[tuple[int, bytes]]
    """The number of records and their bytes."""

    def records(self) -> Iterator[Any]:
        read = reader(self.schema)
        for count, data in self.blocks:
            at = 0
            for _ in range(count):
                record, at = read(data, at)
                yield record


def read_file(body: bytes, location: str) -> AvroFile:
    """Parses an Avro file. Corrupt: it is not one, is truncated, or its codec is not supported."""
    try:
        return _read_file(body)
    except BAD_BYTES as error:
        raise damaged(location, error) from error


def damaged(location: str, error: Exception) -> Corrupt:
    return Corrupt(f"{location} is damaged: {error or type(error).__name__}")


def _read_file(body: bytes) -> AvroFile:
    if body[:4] != _MAGIC:
        raise Corrupt("it is not an Avro file")
    metadata, at = reader(_HEADER, HEADER_ENTRIES_MAX)(body, 4)
    sync, at = body[at : at + _SYNC_SIZE], at + _SYNC_SIZE
    schema = _schema(metadata[_SCHEMA])
    codec = metadata.get(_CODEC, b"null").decode()
    blocks: list[tuple[int, bytes]] = []
    unpacked = records = 0
    while at < len(body):
        count, at = read_long(body, at)
        packed, at = read_bytes(body, at)
        data = _unpacked(packed, codec)
        unpacked += len(data)
        if unpacked > UNPACKED_BYTES_MAX:
            raise Corrupt(f"it decompresses to more than {UNPACKED_BYTES_MAX} bytes")
        if not 0 <= count <= len(data) or body[at : at + _SYNC_SIZE] != sync:
            raise Corrupt(f"its block {len(blocks)} is incomplete")
        records += count
        if records > RECORDS_MAX:
            raise Corrupt(f"it has more than {RECORDS_MAX} entries")
        blocks.append((count, data))
        at += _SYNC_SIZE
    return AvroFile(metadata, schema, blocks)


def _schema(text: bytes) -> AvroSchema:
    if len(text) > SCHEMA_BYTES_MAX:
        raise Corrupt(f"the schema of its records has {len(text)} bytes, more than {SCHEMA_BYTES_MAX}")
    schema = json.loads(text)
    parts = [schema]
    for part in parts:
        if isinstance(part, dict | list):
            parts += part.values() if isinstance(part, dict) else part
        if len(parts) > SCHEMA_PARTS_MAX:
            raise Corrupt(f"the schema of its records has more than {SCHEMA_PARTS_MAX} parts")
    return schema


def write_file(schema: AvroSchema, metadata: Mapping[str, str], records: list[bytes]) -> bytes:
    """Returns a file of one block. The sync marker is derived from the schema: equal records give equal bytes."""
    schema_text = json.dumps(schema, separators=(",", ":"))
    header = {**metadata, _SCHEMA: schema_text, _CODEC: "deflate"}
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
            data = unpacker.decompress(packed, UNPACKED_BYTES_MAX)
            if not unpacker.eof:
                raise Corrupt(f"a block is truncated, or decompresses to more than {UNPACKED_BYTES_MAX} bytes")
            return data
        case "zstandard":
            return decompressed(packed, "zstd")
        case "snappy":  # followed by a checksum
            return decompressed(packed[:-4], "snappy")
        case _:
            raise Corrupt(f"its codec {codec[:30]!r} is not supported")
