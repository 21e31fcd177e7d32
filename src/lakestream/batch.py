"""Kafka's record batch (magic 2) as a view over its bytes. The records inside are never opened on the hot path.

    0  base offset       i64   rewritten on the way out      27  base timestamp   i64
    8  batch length      i32   bytes after this field        35  max timestamp    i64
    12 leader epoch      i32   rewritten on the way out      43  producer id      i64
    16 magic             i8                                  51  producer epoch   i16
    17 crc               u32   CRC-32C of all that follows   53  base sequence    i32
    21 attributes        i16                                 57  record count     i32
    23 last offset delta i32                                 61  records

Base offset and leader epoch lie outside the checksum: whoever gives a batch its offsets patches 16 bytes and copies
nothing.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn, TypeAlias

from lakestream.checksum import JOIN_SIZE_MIN, crc32c, joined
from lakestream.errors import Corrupt, Rejected
from lakestream.filed import FileSpan, OpenFile, Piece
from lakestream.model import Buffer

HEADER_SIZE: Final = 61
LENGTH_END: Final = 12
"""Where the length field ends, and so what it does not count."""

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
_SEQUENCE_MASK: Final = 0x7FFF_FFFF

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_ABORT, _COMMIT = 0, 1


class RecordBatch:
    """One batch, checked. Reads as a frozen value; plain slots, because one is made for every batch that passes."""

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
        """Read the header, check its shape, not the checksum. Callers want `parse` or `verify`."""
        self.data = data
        self.size = size = len(data)
        if size < HEADER_SIZE:
            raise Rejected(f"record batch of {size} bytes is cut off: a header alone takes {HEADER_SIZE}")
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
            raise Rejected(f"record batch has magic {magic}, only 2 is known (Kafka 0.11 and newer)")
        if length != size - LENGTH_END:
            _refuse_length(length, size)
        if record_count < 1 or record_count != last_offset_delta + 1:
            raise Rejected(
                f"record batch counts {record_count} records but its last offset delta is {last_offset_delta}"
            )
        if attributes & COMPRESSION_MASK >= len(CODECS):
            raise Rejected(f"record batch has unknown compression {attributes & COMPRESSION_MASK}")
        if base_sequence >= 0:
            # Sequences wrap at 2^31 - 1 to 0, so the last one may be smaller than the first.
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
        """A batch from a client. Rejected: its shape is wrong. Corrupt: its checksum is."""
        batch = cls(data)
        actual = crc32c(memoryview(data)[_CRC_START:])
        if actual != batch.crc:
            raise Corrupt(
                f"record batch has checksum {batch.crc:08x} but its bytes give {actual:08x}: damaged on the way"
            )
        return batch

    @property
    def compression(self) -> str:
        return CODECS[self.attributes & COMPRESSION_MASK]

    @property
    def timestamp_type(self) -> int:
        """0: made by the client. 1: given at append."""
        return (self.attributes & LOG_APPEND_TIME) >> 3

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_producer(self) -> bool:
        """Written by an idempotent producer (or by a transaction's coordinator)."""
        return self.producer_id >= 0

    def __repr__(self) -> str:
        return (
            f"RecordBatch(records={self.record_count}, size={self.size}, attributes={self.attributes:#x},"
            f" producer={self.producer_id}/{self.producer_epoch}, sequence={self.base_sequence}..{self.last_sequence})"
        )


def _refuse_length(length: int, size: int) -> NoReturn:
    if length > size - LENGTH_END:
        raise Rejected(f"record batch is cut off: {length + LENGTH_END} bytes announced, {size} there")
    raise Rejected(
        f"record batch announces {length + LENGTH_END} bytes but {size} came: send exactly one per partition"
    )


def checksum_with(crc: int, data: Buffer, own_crc: int) -> int:
    """The checksum of what came before and a whole batch, which was held against its own: its records are not read."""
    size = len(data)
    if size < JOIN_SIZE_MIN:
        return crc32c(data, crc)
    return joined(crc32c(memoryview(data)[:_CRC_START], crc), own_crc, size - _CRC_START)


def verify(data: Buffer, name: str) -> RecordBatch:
    """A batch read back from storage: anything wrong with it is Corrupt and names where it was read."""
    try:
        return RecordBatch.parse(data)
    except (Rejected, Corrupt) as error:
        raise Corrupt(f"{name}: {error}") from None


def split(data: Buffer, name: str) -> Iterator[memoryview]:
    """The single batches of bytes that hold several back to back. Looks at lengths only."""
    view = memoryview(data)
    start, size = 0, len(view)
    while start < size:
        if size - start < HEADER_SIZE:
            raise Corrupt(f"{name}: {size - start} stray bytes behind the last record batch")
        (length,) = _LENGTH.unpack_from(view, start + 8)
        end = start + LENGTH_END + length
        if not start + HEADER_SIZE <= end <= size:
            raise Corrupt(f"{name}: record batch at byte {start} announces {length} bytes, {size - start} are there")
        yield view[start:end]
        start = end


class FiledBatch(NamedTuple):
    """A batch whose records stay in a file; only its header is in memory."""

    head: bytes
    records: FileSpan

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.records.size


AnyBatch: TypeAlias = Buffer | FiledBatch


def filed(data: Buffer, file: OpenFile, start: int) -> FiledBatch:
    """The same batch, left where it lies: from `start` of the file on."""
    return FiledBatch(bytes(data[:HEADER_SIZE]), FileSpan(file, start + HEADER_SIZE, len(data) - HEADER_SIZE))


def loaded(batch: AnyBatch) -> Buffer:
    """In memory. Blocks if it is in a file."""
    return batch.head + batch.records.read() if isinstance(batch, FiledBatch) else batch


def rebased(batch: AnyBatch, offset: int, leader_epoch: int = 0) -> list[Piece]:
    """The batch at its place in the log: a new prefix and a view of the rest. No record is copied."""
    if isinstance(batch, FiledBatch):
        (length,) = _LENGTH.unpack_from(batch.head, 8)
        return [_PREFIX.pack(offset, length, leader_epoch), batch.head[_PREFIX.size :], batch.records]
    view = memoryview(batch)
    (length,) = _LENGTH.unpack_from(view, 8)
    return [_PREFIX.pack(offset, length, leader_epoch), view[_PREFIX.size :]]


def gap(count: int) -> bytes:
    """A batch without records in the place of `count` offsets, or of as many as a batch can span: so Kafka leaves one
    where all records were compacted away. A consumer goes on behind it.

    Only for answers that have nothing else: librdkafka takes one without any record for a sign that it asks for too few
    bytes, and after some ten in a row complains of a message too large.
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
    """A batch around records that are already encoded."""
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
    """The marker that ends a transaction, byte for byte as Kafka writes it."""
    key = _MARKER_KEY.pack(0, _COMMIT if commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    # Varints of a record are zigzag: a length of 4 is written as 8, no headers as 0.
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
    """Whether a control batch commits its transaction (else it aborts it)."""
    if not batch.is_control or batch.attributes & COMPRESSION_MASK:
        raise Rejected("record batch is no transaction marker: it must be a control batch without compression")
    # Record length, attributes, timestamp delta, offset delta, key length; the first, third and fourth are varints.
    view = memoryview(batch.data)
    at = _skip_varint(view, HEADER_SIZE) + 1
    at = _skip_varint(view, _skip_varint(view, at))
    if at + 1 + _MARKER_KEY.size > len(view) or view[at] < _MARKER_KEY.size * 2:
        raise Rejected("transaction marker is cut off")
    _version, kind = _MARKER_KEY.unpack_from(view, at + 1)
    if kind not in (_ABORT, _COMMIT):
        raise Rejected(f"control batch of type {kind} is not known: only 0 (abort) and 1 (commit) end a transaction")
    return bool(kind == _COMMIT)


def read_varint(records: Buffer, at: int) -> tuple[int, int]:
    """A number inside a record (zigzag), and where it ends. IndexError: it is cut off."""
    value = shift = 0
    while True:
        byte = records[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise Rejected("a number in the record batch is too long")


def _skip_varint(view: memoryview, at: int) -> int:
    for end in range(at, min(at + 10, len(view))):
        if view[end] < 0x80:
            return end + 1
    raise Rejected("transaction marker is cut off")
