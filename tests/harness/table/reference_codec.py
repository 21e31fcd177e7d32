"""Reference codec of records, batches and rows in plain Python, to compare kernels with. Shares no code with them."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from crc32c import crc32c

from lakestream.records.compression import compressed, decompressed

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
HEAD = struct.Struct(">qiibIhiqqqhii")
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


class Record(NamedTuple):
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def wrapped(number: int) -> int:
    """Wraps around at 64 bits, as in Java."""
    return (number - LONG_MIN) % 2**64 + LONG_MIN


def varint(number: int) -> bytes:
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def sized(field: bytes | None) -> bytes:
    return varint(-1) if field is None else varint(len(field)) + field


def record_bytes(record: Record, base_offset: int, base_timestamp: int) -> bytes:
    body = b"".join(
        (
            b"\0",
            varint(wrapped(record.timestamp - base_timestamp)),
            varint(record.offset - base_offset),
            sized(record.key),
            sized(record.value),
            varint(len(record.headers)),
            *(sized(key) + sized(value) for key, value in record.headers),
        )
    )
    return varint(len(body)) + body


def batch_of(records: Sequence[Record], codec: str = "none", base_timestamp: int | None = None) -> bytes:
    """Returns one batch as a client sends it: its base offset is 0, whatever the records' offsets are."""
    base = records[0].timestamp if base_timestamp is None else base_timestamp
    body = b"".join(record_bytes(record, records[0].offset, base) for record in records)
    return framed(
        compressed(body, codec),
        len(records),
        attributes=CODECS.index(codec) | records[0].timestamp_type << 3,
        delta_max=records[-1].offset - records[0].offset,
        base_timestamp=base,
        max_timestamp=max(record.timestamp for record in records),
    )


def framed(
    body: bytes,
    count: int,
    *,
    attributes: int = 0,
    delta_max: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    magic: int = 2,
) -> bytes:
    delta = count - 1 if delta_max is None else delta_max
    tail = struct.pack(">hiqqqhii", attributes, delta, base_timestamp, max_timestamp, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(tail) + 9, 0, magic, crc32c(tail)) + tail


class Damaged(Exception): ...


def read_batch(data: bytes, base_offset: int | None = None) -> list[Record]:
    """Returns the records of one batch. Raises Damaged if it is invalid."""
    stored, length, _, magic, crc, attributes, delta_max, base_time, max_time, _, _, _, count = HEAD.unpack_from(data)
    if magic != 2 or length != len(data) - 12 or crc != crc32c(data[21:]):
        raise Damaged("head")
    base = stored if base_offset is None else base_offset
    body = decompressed(data[61:], CODECS[attributes & 7])
    records, at, before = [], 0, -1
    for _ in range(count):
        size, at = _varint(body, at, len(body), 32)
        end = at + size
        if size < 0 or end > len(body):
            raise Damaged("record")
        time_delta, at = _varint(body, at + 1, end, 64)
        offset_delta, at = _varint(body, at, end, 32)
        if not before < offset_delta <= delta_max:
            raise Damaged("offset")
        before = offset_delta
        key, at = _field(body, at, end)
        value, at = _field(body, at, end)
        header_count, at = _varint(body, at, end, 32)
        if header_count < 0:
            raise Damaged("headers")
        headers = []
        for _ in range(header_count):
            header_key, at = _field(body, at, end)
            header_value, at = _field(body, at, end)
            if header_key is None:
                raise Damaged("header")
            headers.append((header_key, header_value))
        if at != end:
            raise Damaged("stray")
        kind = attributes >> 3 & 1
        timestamp = max_time if kind else wrapped(base_time + time_delta)
        records.append(Record(base + offset_delta, timestamp, kind, key, value, tuple(headers)))
    if at != len(body):
        raise Damaged("left over")
    return records


def read_batches(data: bytes) -> Iterator[list[Record]]:
    """Returns the records of batches back to back, at the offsets in their headers."""
    at = 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        yield read_batch(data[at:end])
        at = end


def _varint(data: bytes, at: int, end: int, bits: int) -> tuple[int, int]:
    raw = shift = 0
    while at < end:
        raw |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            if raw >= 2**bits:
                break
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift >= bits:
            break
    raise Damaged("number")


def _field(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at, end, 32)
    if size > end - at:
        raise Damaged("field")
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def records_of(table: Any) -> list[Record]:
    """Returns rows as records. Asserts each rule of the layout."""
    if not isinstance(table, pa.Table):
        table = pa.Table.from_batches([table])
    stream = table.column("_stream")
    columns = {field.name: _listed(stream, number) for number, field in enumerate(stream.type)}
    values = table.column("value").to_pylist()
    return [_record(values[row], {name: column[row] for name, column in columns.items()}) for row in range(len(values))]


def _listed(stream: Any, number: int) -> list[Any]:
    """Casts timestamps to numbers: Python has no times beyond the year 9999."""
    kind = stream.type.field(number).type
    chunks = [chunk.field(number) for chunk in stream.chunks]
    if pa.types.is_timestamp(kind):
        chunks = [chunk.cast(pa.int64()) for chunk in chunks]
    return [item for chunk in chunks for item in chunk.to_pylist()]


def _record(value: bytes | None, stream: dict[str, Any]) -> Record:
    micros, millis = stream["timestamp"], stream["timestamp_ms"]
    assert (micros is None) != (millis is None), "one of the two"
    assert millis is None or not LONG_MIN <= millis * 1000 <= LONG_MAX, "milliseconds only where they must"
    assert stream["schema_id"] is None
    assert stream["value"] is None
    timestamp = micros // 1000 if millis is None else millis
    headers = tuple((_header_key(header), header["value"]) for header in stream["headers"])
    return Record(stream["offset"], timestamp, stream["timestamp_type"], stream["key"], value, headers)


def _header_key(header: dict[str, Any]) -> bytes:
    key, raw = header["key"], header["key_raw"]
    assert (key is None) != (raw is None), "one of the two"
    if raw is None:
        return str(key).encode()
    assert _is_no_text(raw), "raw only where it must"
    return bytes(raw)


def _is_no_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False
