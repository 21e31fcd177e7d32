"""Kafka record batch (magic 2) as a view over its bytes. The hot path never decodes the records.

    0  base offset       i64   rewritten on the way out      27  base timestamp   i64
    8  batch length      i32   bytes after this field        35  max timestamp    i64
    12 leader epoch      i32   rewritten on the way out      43  producer id      i64
    16 magic             i8                                  51  producer epoch   i16
    17 crc               u32   CRC-32C of all that follows   53  base sequence    i32
    21 attributes        i16                                 57  record count     i32
    23 last offset delta i32                                 61  records

Base offset and leader epoch are not covered by the checksum: to assign offsets, 16 bytes are replaced and no record is
copied.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn, TypeAlias

from lakestream.errors import Corrupt, Rejected
from lakestream.model import Buffer
from lakestream.records.crc32c import JOIN_SIZE_MIN, combine_crcs, crc32c
from lakestream.records.file_region import BufferOrFile, FileRegion, SharedFile

HEADER_SIZE: Final = 61
LENGTH_END: Final = 12
"""End of the length field. The length does not include the bytes before it."""

NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_HEADER = struct.Struct(">qiibIhiqqqhii")
_PREFIX = struct.Struct(">qii")
_LENGTH = struct.Struct(">i")
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")

_MAGIC: Final = 2
_CRC_START: Final = 21
_ATTRIBUTES_LOW_AT: Final = 22
_SEQUENCE_MASK: Final = 0x7FFF_FFFF

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_ABORT, _COMMIT = 0, 1


class Timestamps(NamedTuple):
    """Timestamps of the records of a batch, in milliseconds."""

    oldest: int
    newest: int


class RecordBatch:
    """A batch with a validated header. Immutable by convention; plain slots, because it is created for every batch."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "data",
        "last_offset_delta",
        "last_sequence",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size",
    )

    def __init__(self, data: Buffer) -> None:
        """Parses and validates the header, but not the checksum: use `parse` or `verify`."""
        self.data = data
        self.size = size = len(data)
        if size < HEADER_SIZE:
            raise Rejected(f"record batch of {size} bytes is truncated: its header has {HEADER_SIZE} bytes")
        (
            self.base_offset,
            length,
            _leader_epoch,
            magic,
            self.crc,
            attributes,
            last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            record_count,
        ) = _HEADER.unpack_from(data)
        self.attributes: int = attributes
        self.last_offset_delta: int = last_offset_delta
        self.producer_id: int = producer_id
        self.producer_epoch: int = producer_epoch
        self.base_sequence: int = base_sequence
        self.record_count: int = record_count
        if magic != _MAGIC:
            raise Rejected(f"record batch has magic {magic}, only 2 is supported (Kafka 0.11 and newer)")
        if length != size - LENGTH_END:
            _reject_length(length, size)
        if record_count < 1 or record_count != last_offset_delta + 1:
            raise Rejected(f"record batch has {record_count} records but its last offset delta is {last_offset_delta}")
        if attributes & COMPRESSION_MASK >= len(CODECS):
            raise Rejected(f"record batch has unknown compression {attributes & COMPRESSION_MASK}")
        if base_sequence >= 0:
            # Sequences wrap from 2^31 - 1 to 0, so the last one may be smaller than the first.
            self.last_sequence = (base_sequence + last_offset_delta) & _SEQUENCE_MASK
        else:
            self.last_sequence = NO_SEQUENCE
        if producer_id < 0:
            if producer_id != NO_PRODUCER or attributes & (TRANSACTIONAL | CONTROL):
                raise Rejected(f"record batch has producer id {producer_id}, which cannot take part in a transaction")
        elif producer_epoch < 0 or (base_sequence < 0 and not attributes & CONTROL):
            raise Rejected(
                f"record batch of producer {producer_id} has epoch {producer_epoch} and sequence {base_sequence};"
                " neither may be negative"
            )

    @classmethod
    def parse(cls, data: Buffer) -> "RecordBatch":
        """Parses a batch from a client. Raises Rejected if it is invalid, Corrupt if its checksum does not match."""
        batch = cls(data)
        actual = crc32c(memoryview(data)[_CRC_START:])
        if actual != batch.crc:
            raise Corrupt(
                f"record batch has checksum {batch.crc:08x} but its bytes have {actual:08x}: damaged in transit"
            )
        return batch

    @property
    def compression(self) -> str:
        return CODECS[self.attributes & COMPRESSION_MASK]

    @property
    def timestamp_type(self) -> int:
        """0: CreateTime. 1: LogAppendTime."""
        return (self.attributes & LOG_APPEND_TIME) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_producer(self) -> bool:
        """Returns whether an idempotent producer or a transaction coordinator wrote the batch."""
        return self.producer_id >= 0

    def __repr__(self) -> str:
        return (
            f"RecordBatch(records={self.record_count}, size={self.size}, attributes={self.attributes:#x},"
            f" producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence}..{self.last_sequence})"
        )


def is_compressed(batch: Buffer) -> bool:
    """Returns whether the attributes of a batch that was not validated yet name a compression codec."""
    return len(batch) > _ATTRIBUTES_LOW_AT and batch[_ATTRIBUTES_LOW_AT] & COMPRESSION_MASK != 0


def _reject_length(length: int, size: int) -> NoReturn:
    if length > size - LENGTH_END:
        raise Rejected(f"record batch is truncated: its length is {length + LENGTH_END} bytes, received {size}")
    raise Rejected(
        f"record batch length is {length + LENGTH_END} bytes, received {size}: send exactly one batch per partition"
    )


def checksum_with(crc: int, data: Buffer, batch_crc: int) -> int:
    """Returns the checksum of bytes with checksum `crc` followed by a batch.

    The batch must have been validated against its own checksum: then its records need not be read again.
    """
    size = len(data)
    if size < JOIN_SIZE_MIN:
        return crc32c(data, crc)
    return combine_crcs(crc32c(memoryview(data)[:_CRC_START], crc), batch_crc, size - _CRC_START)


def verify(data: Buffer, name: str) -> RecordBatch:
    """Parses a batch from storage. Raises Corrupt, with the name of its location, if anything is wrong."""
    try:
        return RecordBatch.parse(data)
    except (Rejected, Corrupt) as error:
        raise Corrupt(f"{name}: {error}") from None


def split(data: Buffer, name: str) -> Iterator[memoryview]:
    """Yields the batches of a buffer with several consecutive batches. Reads only their lengths."""
    view = memoryview(data)
    start, size = 0, len(view)
    while start < size:
        if size - start < HEADER_SIZE:
            raise Corrupt(f"{name}: {size - start} extra bytes after the last record batch")
        (length,) = _LENGTH.unpack_from(view, start + 8)
        end = start + LENGTH_END + length
        if not start + HEADER_SIZE <= end <= size:
            raise Corrupt(f"{name}: record batch at byte {start} has length {length}, but {size - start} bytes follow")
        yield view[start:end]
        start = end


class BatchInFile(NamedTuple):
    """A batch whose records are in a file. Only its header is in memory."""

    head: bytes
    records: FileRegion

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.records.size


AnyBatch: TypeAlias = Buffer | BatchInFile


def batch_in_file(data: Buffer, file: SharedFile, start: int) -> BatchInFile:
    """Returns a batch whose records are not kept in memory. It begins at `start` of the file."""
    return BatchInFile(bytes(data[:HEADER_SIZE]), FileRegion(file, start + HEADER_SIZE, len(data) - HEADER_SIZE))


def loaded(batch: AnyBatch) -> Buffer:
    """Returns the batch in memory. Blocks if it is in a file."""
    return batch.head + batch.records.read() if isinstance(batch, BatchInFile) else batch


def rebased(batch: AnyBatch, offset: int, leader_epoch: int = 0) -> list[BufferOrFile]:
    """Returns the batch with its offset in the log: a new prefix and a view of the rest. No record is copied."""
    if isinstance(batch, BatchInFile):
        (length,) = _LENGTH.unpack_from(batch.head, 8)
        return [_PREFIX.pack(offset, length, leader_epoch), batch.head[_PREFIX.size :], batch.records]
    view = memoryview(batch)
    (length,) = _LENGTH.unpack_from(view, 8)
    return [_PREFIX.pack(offset, length, leader_epoch), view[_PREFIX.size :]]


def gap(count: int) -> bytes:
    """Returns a batch without records that spans `count` offsets, or as many as a batch can span.

    Kafka has such batches where all records were compacted away. A consumer continues after it. Only for responses
    without other batches: librdkafka takes a response without records as a sign that its fetch size is too small, and
    after about ten in a row reports that a message is too large.
    """
    delta = min(count - 1, 2**31 - 1)
    covered = _GAP.pack(0, delta, -1, -1, NO_PRODUCER, -1, NO_SEQUENCE, 0)
    return _PREFIX.pack(0, HEADER_SIZE - LENGTH_END, 0) + _GAP_CHECK.pack(_MAGIC, crc32c(covered)) + covered


_GAP = struct.Struct(">hiqqqhii")
_GAP_CHECK = struct.Struct(">bI")


def build(
    records: bytes,
    record_count: int,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
) -> bytes:
    """Returns a batch of records that are already encoded."""
    body = _HEADER.pack(
        0,
        HEADER_SIZE - LENGTH_END + len(records),
        0,
        _MAGIC,
        0,
        attributes,
        record_count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    crc = crc32c(records, crc32c(body[_CRC_START:]))
    return b"".join((body[:17], crc.to_bytes(4, "big"), body[_CRC_START:], records))


def control_batch(producer_id: int, epoch: int, commit: bool, timestamp_ms: int, coordinator_epoch: int) -> bytes:
    """Returns the control batch that ends a transaction, byte for byte as Kafka writes it."""
    key = _MARKER_KEY.pack(0, _COMMIT if commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    # Varints of a record are zigzag encoded: a length of 4 is written as 8, a header count of 0 as 0.
    record = bytes((0, 0, 0, len(key) * 2)) + key + bytes((len(value) * 2,)) + value + b"\0"
    return build(
        bytes((len(record) * 2,)) + record,
        1,
        attributes=TRANSACTIONAL | CONTROL,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=NO_SEQUENCE,
    )


def is_commit(batch: RecordBatch) -> bool:
    """Returns whether a control batch commits its transaction. Otherwise it aborts it."""
    if not batch.is_control or batch.attributes & COMPRESSION_MASK:
        raise Rejected("record batch is not a transaction marker: it must be a control batch without compression")
    # Record length, attributes, timestamp delta, offset delta, key length; the first, third and fourth are varints.
    view = memoryview(batch.data)
    at = _skip_varint(view, HEADER_SIZE) + 1
    at = _skip_varint(view, _skip_varint(view, at))
    if at + 1 + _MARKER_KEY.size > len(view) or view[at] < _MARKER_KEY.size * 2:
        raise Rejected("transaction marker is truncated")
    _version, kind = _MARKER_KEY.unpack_from(view, at + 1)
    if kind not in (_ABORT, _COMMIT):
        raise Rejected(f"unknown control batch type {kind}: only 0 (abort) and 1 (commit) end a transaction")
    return bool(kind == _COMMIT)


def read_varint(records: Buffer, at: int) -> tuple[int, int]:
    """Returns a zigzag varint of a record, and the position after it. Raises IndexError if it is truncated."""
    value = shift = 0
    while True:
        byte = records[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise Rejected("a varint in the record batch is too long")


def _skip_varint(view: memoryview, at: int) -> int:
    for end in range(at, min(at + 10, len(view))):
        if view[end] < 0x80:
            return end + 1
    raise Rejected("transaction marker is truncated")
