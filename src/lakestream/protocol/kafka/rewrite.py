"""A batch written anew: only where a topic wants another codec than its producers use, or the broker's time.

Whole and in a thread: decompress, change, compress, new checksum. Nothing else ever touches a record.
"""

import struct
from typing import Final

from crc32c import crc32c

from lakestream.batch import CODECS, COMPRESSION_MASK, HEADER_SIZE, LENGTH_END, LOG_APPEND_TIME, RecordBatch
from lakestream.compression import compressed, decompressed
from lakestream.coordination.topic_settings import TopicSettings
from lakestream.model import Buffer

_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _MAX_TIMESTAMP_AT = 8, 17, 21, 35
_CRC_START: Final = _ATTRIBUTES_AT


def wanted_codec(batch: RecordBatch, settings: TopicSettings) -> str:
    if settings.compression == "producer":
        return batch.compression
    return "none" if settings.compression == "uncompressed" else settings.compression


def needs_rewriting(batch: RecordBatch, settings: TopicSettings) -> bool:
    return settings.log_append_time or wanted_codec(batch, settings) != batch.compression


def rewritten(batch: RecordBatch, settings: TopicSettings, now_ms: int) -> bytes:
    codec = wanted_codec(batch, settings)
    records: Buffer = memoryview(batch.data)[HEADER_SIZE:]
    if codec != batch.compression:
        records = compressed(decompressed(records, batch.compression), codec)
    attributes = (batch.attributes & ~COMPRESSION_MASK) | CODECS.index(codec)
    head = bytearray(memoryview(batch.data)[:HEADER_SIZE])
    if settings.log_append_time:
        attributes |= LOG_APPEND_TIME
        struct.pack_into(">q", head, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">i", head, _LENGTH_AT, HEADER_SIZE - LENGTH_END + len(records))
    struct.pack_into(">h", head, _ATTRIBUTES_AT, attributes)
    struct.pack_into(">I", head, _CRC_AT, crc32c(records, crc32c(head[_CRC_START:])))
    return bytes(head) + bytes(records)
