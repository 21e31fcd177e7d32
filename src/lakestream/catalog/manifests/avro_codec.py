"""Avro's binary encoding: returns functions that read, skip and write the values of an Avro schema. Pure.

Iceberg uses Avro for manifests and manifest lists, and every engine writes them in its own schema. Fields are
identified by Iceberg's field ids: a record is a dict by id, and an array of key-value pairs is a dict. Other programs
write to the bucket, so counts and sizes are bounded by the bytes of the file.

A value is read by `(bytes, position) -> (value, position behind it)`. In plain Python a manifest's entry takes 40 µs to
read, 10 to skip. docs/adr/0011-own-iceberg-commits.md compares it with fastavro.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from lakestream.errors import Corrupt

Value: TypeAlias = Any
Read: TypeAlias = Callable[[bytes, int], tuple[Value, int]]
Skip: TypeAlias = Callable[[bytes, int], int]
Write: TypeAlias = Callable[[bytearray, Value], None]
AvroSchema: TypeAlias = Any
"""In JSON: a name, a list (a union), or an object."""

FIELD_ID: Final = "field-id"
VARINT_BYTES_MAX: Final = 10
ITEMS_MAX: Final = 1_000_000
"""Of one array or map. An item may be one byte in the file, and takes about a hundred in memory."""
RECORD_VALUES_MAX: Final = 1_000_000
"""Fields and items of one record with all records in it. A field that is null takes no bytes in the file."""
FILE_VALUES_MAX: Final = 20_000_000
"""Of all records that one reader reads: a value takes a microsecond."""


# Numbers. All other values start with one


def read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift, end = byte & 0x7F, 7, at + VARINT_BYTES_MAX
    while byte & 0x80:
        at += 1
        if at >= end:
            raise Corrupt("number of more than 64 bits")
        byte = data[at]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), at + 1


def skip_long(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


def write_long(out: bytearray, number: int) -> None:
    folded = (number << 1) ^ (number >> 63)
    while folded > 0x7F:
        out.append((folded & 0x7F) | 0x80)
        folded >>= 7
    out.append(folded)


# Bytes


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = read_long(data, at)
    return _slice(data, at, size), at + size


def skip_bytes(data: bytes, at: int) -> int:
    size, at = read_long(data, at)
    _check_size(data, at, size)
    return at + size


def write_bytes(out: bytearray, piece: bytes) -> None:
    write_long(out, len(piece))
    out += piece


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    piece, at = read_bytes(data, at)
    return piece.decode(), at


def _write_string(out: bytearray, text: str) -> None:
    write_bytes(out, text.encode())


def _fixed_writer(size: int) -> Write:
    def write(out: bytearray, piece: bytes) -> None:
        assert len(piece) == size, f"{len(piece)} bytes for a fixed of {size}"
        out += piece

    return write


def _slice(data: bytes, at: int, size: int) -> bytes:
    _check_size(data, at, size)
    return data[at : at + size]


def _check_size(data: bytes, at: int, size: int) -> None:
    if not 0 <= size <= len(data) - at:
        raise Corrupt(f"value of {size} bytes where {len(data) - at} are left")


# Readers, skippers and writers by type


class _ValueCount:
    """Counts the values that a reader has read, because the bytes of the file do not bound their number."""

    def __init__(self, record_max: int) -> None:
        self._record_max = record_max
        self._of_record = 0
        self._of_file = 0

    def add(self, count: int) -> None:
        self._of_record += count
        if self._of_record > self._record_max:
            raise Corrupt(f"a record has more than {self._record_max} values")

    def end_record(self) -> None:
        self._of_file += self._of_record
        self._of_record = 0
        if self._of_file > FILE_VALUES_MAX:
            raise Corrupt(f"its records have more than {FILE_VALUES_MAX} values")


def reader(schema: AvroSchema, record_values_max: int = RECORD_VALUES_MAX) -> Read:
    """Returns the reader of one file's records. Corrupt: they have too many values, one by one or together."""
    values = _ValueCount(record_values_max)
    read = _reader(schema, values)

    def read_record(data: bytes, at: int) -> tuple[Value, int]:
        record = read(data, at)
        values.end_record()
        return record

    return read_record


def _reader(schema: AvroSchema, values: _ValueCount) -> Read:
    match _kind(schema):
        case "null":
            return lambda data, at: (None, at)
        case "boolean":
            return lambda data, at: (data[at] != 0, at + 1)
        case "int" | "long" | "enum":
            return read_long
        case "float":
            return lambda data, at: (struct.unpack("<f", _slice(data, at, 4))[0], at + 4)
        case "double":
            return lambda data, at: (struct.unpack("<d", _slice(data, at, 8))[0], at + 8)
        case "bytes":
            return read_bytes
        case "string":
            return _read_string
        case "fixed":
            size = int(schema["size"])
            return lambda data, at: (_slice(data, at, size), at + size)
        case "union":
            return _union_reader([_reader(branch, values) for branch in schema])
        case "record":
            return _record_reader([(_id(field), _reader(field["type"], values)) for field in schema["fields"]], values)
        case "array":
            check_items(size_min(schema["items"]))
            if _is_pairs(schema):
                return _pairs_reader(schema, values)
            return _array_reader(_reader(schema["items"], values), values)
        case "map":
            return _keyed_reader(_read_string, _reader(schema["values"], values), values)
        case kind:
            raise Corrupt(f"unknown Avro type {str(kind)[:60]!r}")


def skipper(schema: AvroSchema) -> Skip:
    match _kind(schema):
        case "null":
            return lambda data, at: at
        case "boolean":
            return lambda data, at: at + 1
        case "int" | "long" | "enum":
            return skip_long
        case "bytes" | "string":
            return skip_bytes
        case "union":
            return _union_skipper([skipper(branch) for branch in schema])
        case "record":
            return _record_skipper([skipper(field["type"]) for field in schema["fields"]])
        case "array":
            return _array_skipper(schema["items"])
        case _:
            read = reader(schema)
            return lambda data, at: read(data, at)[1]


def writer(schema: AvroSchema) -> Write:
    """Supports the types of our own schemas: a union is null or one other type."""
    match _kind(schema):
        case "boolean":
            return lambda out, value: out.append(1 if value else 0)
        case "int" | "long":
            return write_long
        case "float":
            return lambda out, value: out.extend(struct.pack("<f", value))
        case "double":
            return lambda out, value: out.extend(struct.pack("<d", value))
        case "fixed":
            return _fixed_writer(int(schema["size"]))
        case "bytes":
            return write_bytes
        case "string":
            return _write_string
        case "union":
            return _optional_writer(writer(schema[1]))
        case "record":
            return _record_writer([(_id(field), writer(field["type"])) for field in schema["fields"]])
        case "array":
            return _pairs_writer(schema) if _is_pairs(schema) else _array_writer(writer(schema["items"]))
        case kind:
            raise AssertionError(f"{kind} is never written")


def _kind(schema: AvroSchema) -> str:
    if isinstance(schema, list):
        return "union"
    named = schema.get("type") if isinstance(schema, dict) else schema
    return named if isinstance(named, str) else _kind(named) if named is not None else "nothing"


def size_min(schema: AvroSchema) -> int:
    """Returns the least number of bytes of a value; 1 for types that are not read."""
    match _kind(schema):
        case "null":
            return 0
        case "fixed":
            return int(schema["size"])
        case "record":
            return sum(size_min(field["type"]) for field in schema["fields"])
        case _:
            return 1


def check_items(size: int) -> None:
    """Raises Corrupt if the items of an array take no bytes: then the bytes of the file do not bound their number."""
    if size <= 0:
        raise Corrupt("the items of an array take no bytes")


def _id(field: Mapping[str, Any]) -> Any:
    """Returns Iceberg's field id; the name if the field has none."""
    return field.get(FIELD_ID, field["name"])


def _is_pairs(schema: Mapping[str, Any]) -> bool:
    """Returns whether an array is an Iceberg map: Avro's maps only have string keys."""
    items = schema["items"]
    if not isinstance(items, dict) or items.get("type") != "record":
        return False
    return [field["name"] for field in items["fields"]] == ["key", "value"]


# Compound types


def _union_reader(branches: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Value, int]:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(branches):
            raise Corrupt(f"a union of {len(branches)} branches has no branch {branch}")
        return branches[branch](data, at)

    return read


def _union_skipper(branches: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(branches):
            raise Corrupt(f"a union of {len(branches)} branches has no branch {branch}")
        return branches[branch](data, at)

    return skip


def _optional_writer(write: Write) -> Write:
    def write_optional(out: bytearray, value: Value) -> None:
        if value is None:
            out.append(0)
        else:
            out.append(2)  # branch 1
            write(out, value)

    return write_optional


def _record_reader(fields: list[tuple[Any, Read]], values: _ValueCount) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[Any, Value], int]:
        values.add(len(fields))
        record = {}
        for number, read_field in fields:
            record[number], at = read_field(data, at)
        return record, at

    return read


def _record_skipper(fields: list[Skip]) -> Skip:
    def skip(data: bytes, at: int) -> int:
        for skip_field in fields:
            at = skip_field(data, at)
        return at

    return skip


def _record_writer(fields: list[tuple[Any, Write]]) -> Write:
    def write(out: bytearray, record: Mapping[Any, Value]) -> None:
        for number, write_field in fields:
            write_field(out, record.get(number))

    return write


def _block(data: bytes, at: int) -> tuple[int, int]:
    """Returns the number of items in the next block. An array ends with an empty block."""
    count, at = read_long(data, at)
    if count < 0:
        _, at = read_long(data, at)  # its size in bytes
    if abs(count) > len(data) - at:
        raise Corrupt(f"block of {abs(count)} items where {len(data) - at} bytes are left")
    return abs(count), at


def _check_count(count: int) -> None:
    if count > ITEMS_MAX:
        raise Corrupt(f"an array has more than {ITEMS_MAX} items")


def _array_reader(read_item: Read, values: _ValueCount) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Value], int]:
        items: list[Value] = []
        while True:
            count, at = _block(data, at)
            if not count:
                return items, at
            _check_count(len(items) + count)
            values.add(count)
            for _ in range(count):
                item, at = read_item(data, at)
                items.append(item)

    return read


def _pairs_reader(schema: Mapping[str, Any], values: _ValueCount) -> Read:
    read_key, read_value = (_reader(field["type"], values) for field in schema["items"]["fields"])
    return _keyed_reader(read_key, read_value, values)


def _keyed_reader(read_key: Read, read_value: Read, values: _ValueCount) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[Any, Value], int]:
        pairs: dict[Any, Value] = {}
        while True:
            count, at = _block(data, at)
            if not count:
                return pairs, at
            _check_count(len(pairs) + count)
            values.add(count)
            for _ in range(count):
                key, at = read_key(data, at)
                pairs[key], at = read_value(data, at)

    return read


def _array_skipper(items: AvroSchema) -> Skip:
    check_items(size_min(items))
    numbers = _numbers_in(items)
    skip_item = skipper(items)

    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = _block(data, at)
            if not count:
                return at
            if not numbers:
                for _ in range(count):
                    at = skip_item(data, at)
            for _ in range(count * numbers):
                while data[at] & 0x80:
                    at += 1
                at += 1

    return skip


def _numbers_in(items: AvroSchema) -> int:
    """Returns how many numbers an item consists of; 0 if it has other types. Most statistics are such arrays."""
    fields = [field["type"] for field in items["fields"]] if _kind(items) == "record" else [items]
    return len(fields) if all(_kind(field) in ("int", "long") for field in fields) else 0


def _array_writer(write_item: Write) -> Write:
    def write(out: bytearray, items: list[Value]) -> None:
        if items:
            write_long(out, len(items))
            for item in items:
                write_item(out, item)
        out.append(0)

    return write


def _pairs_writer(schema: Mapping[str, Any]) -> Write:
    write_key, write_value = (writer(field["type"]) for field in schema["items"]["fields"])

    def write(out: bytearray, pairs: Mapping[Any, Value]) -> None:
        if pairs:
            write_long(out, len(pairs))
            for key, value in pairs.items():
                write_key(out, key)
                write_value(out, value)
        out.append(0)

    return write
