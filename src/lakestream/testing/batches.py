"""Encoder and decoder of uncompressed record batches for tests and tools, in the standard library only."""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.model import Buffer
from lakestream.records.batch import HEADER_SIZE, NO_PRODUCER, NO_SEQUENCE, TRANSACTIONAL, RecordBatch, build


class PlainRecord(NamedTuple):
    offset_delta: int
    key: bytes | None
    value: bytes | None


def make_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    producer_id: int = NO_PRODUCER,
    epoch: int = -1,
    sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    timestamp_ms: int = 1_700_000_000_000,
) -> bytes:
    """Returns a valid uncompressed batch; all records have the same timestamp."""
    records = b"".join(
        _record(delta, keys[delta] if keys is not None else None, value) for delta, value in enumerate(values)
    )
    return build(
        records,
        len(values),
        attributes=TRANSACTIONAL if transactional else 0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def records_of(batch: RecordBatch | Buffer) -> list[PlainRecord]:
    """Returns the records of an uncompressed batch, without their headers."""
    data = bytes(batch.data if isinstance(batch, RecordBatch) else batch)
    count = int.from_bytes(data[57:61], "big")
    records, at = [], HEADER_SIZE
    for _ in range(count):
        size, at = _read_varint(data, at)
        records.append(_read_record(data, at))
        at += size
    assert at == len(data), "records fill the batch exactly"
    return records


def _record(offset_delta: int, key: bytes | None, value: bytes | None) -> bytes:
    body = b"\0\0" + _varint(offset_delta) + _sized(key) + _sized(value) + b"\0"
    return _varint(len(body)) + body


def _read_record(data: bytes, at: int) -> PlainRecord:
    _timestamp_delta, at = _read_varint(data, at + 1)
    offset_delta, at = _read_varint(data, at)
    key, at = _read_sized(data, at)
    value, at = _read_sized(data, at)
    return PlainRecord(offset_delta, key, value)


def _sized(field: bytes | None) -> bytes:
    return _varint(-1) if field is None else _varint(len(field)) + field


def _read_sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _read_varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _varint(number: int) -> bytes:
    """Encodes a number as Kafka's varint: zigzag, seven bits per byte, low bits first."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    rest = shift = 0
    while True:
        byte = data[at]
        at += 1
        rest |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return rest >> 1 ^ -(rest & 1), at
