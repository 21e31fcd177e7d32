"""Protobuf codec, case by case. Random messages: tests/property/test_protobuf_values.py."""

import ctypes
import datetime as dt
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from google.protobuf import message_factory

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed import column_buffers
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.protobuf.codec import ProtobufCodec
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.writer_schema import WriterSchema

SCHEMA: Final = """
syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/protobuf/any.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
message All {
  int32 number = 1;
  optional int32 maybe = 2;
  string text = 3;
  enum State { NEW = 0; FRESH = 1; DONE = -7; }
  State state = 4;
  repeated State states = 5;
  google.protobuf.Timestamp at = 6;
  google.type.Date day = 7;
  google.type.TimeOfDay time = 8;
  confluent.type.Decimal price = 9 [(confluent.field_meta) = {
    params: [{key: "precision" value: "6"}, {key: "scale" value: "2"}]
  }];
  google.protobuf.Int64Value wrapped = 10;
  google.protobuf.Empty empty = 11;
  google.protobuf.Any any = 12;
  google.protobuf.Struct object = 13;
  oneof choice { string name = 14; Inner inner = 15; }
  map<string, Inner> inners = 16;
  repeated Inner list = 17;
  repeated sint32 packed = 18;
  All self = 19;
  message Inner { int32 a = 1; repeated string b = 2; }
  message Wide { int32 a = 1; int32 b = 2; int32 c = 3; }
  repeated Wide wides = 20;
}
"""


@lru_cache
def codec() -> ProtobufCodec:
    return ProtobufCodec(read_protobuf(Source(Format.PROTOBUF, SCHEMA)))


def new(**fields: Any) -> Any:
    return message_factory.GetMessageClass(read_protobuf(Source(Format.PROTOBUF, SCHEMA)).descriptor)(**fields)


def located(values: list[bytes | None]) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def bytes_of(found: ByteSpans) -> list[bytes | None]:
    pairs = zip(found.address.tolist(), found.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in pairs]


def row_and_bytes(value: bytes) -> tuple[dict[str, Any], bytes | None]:
    """Returns the columns of a value, and their encoding."""
    decoded = codec().decode(located([value]))
    assert not decoded.problems[0], codec().reason(int(decoded.problems[0]))
    array = to_arrow(decoded.buffers, held=decoded.held)
    array.validate(full=True)
    (again,) = bytes_of(codec().encode(from_arrow(array, codec().layout).buffers))
    return array.to_pylist()[0], again


def problem(value: bytes) -> str:
    decoded = codec().decode(located([b"", value, b""]))
    assert decoded.problems[[0, 2]].tolist() == [0, 0]
    assert to_arrow(decoded.buffers).is_valid().to_pylist() == [True, False, True]
    return codec().reason(int(decoded.problems[1]))


def test_missing_fields_have_defaults_or_are_null() -> None:
    """Missing scalars of proto3 are zero; `optional` ones and messages are null; lists are empty."""
    row, again = row_and_bytes(b"")
    assert (row["number"], row["text"], row["state"], row["list"], row["inners"]) == (0, "", "NEW", [], [])
    assert [row[name] for name in ("maybe", "at", "day", "price", "wrapped", "empty", "name", "inner")] == [None] * 8
    assert again == b""


def test_null_values_and_null_columns_are_restored() -> None:
    decoded = codec().decode(located([None, b"\x08\x05"]))
    array = to_arrow(decoded.buffers)
    assert array.is_valid().to_pylist() == [False, True]
    assert bytes_of(codec().encode(decoded.buffers)) == [None, b"\x08\x05"]
    empty = pa.array([{}], array.type)
    assert bytes_of(codec().encode(from_arrow(empty, codec().layout).buffers)) == [b""]


def test_well_known_messages_become_one_value() -> None:
    message = new(maybe=0, empty={}, wrapped={})
    message.at.FromJsonString("1969-12-31T23:59:59.999999Z")
    message.day.year, message.day.month, message.day.day = 2024, 2, 29
    message.time.hours, message.time.minutes, message.time.seconds, message.time.nanos = 23, 59, 58, 1_000
    message.price.value, message.price.precision, message.price.scale = b"\xff\x00", 3, 2
    value = message.SerializeToString()
    row, again = row_and_bytes(value)
    assert row["at"] == dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC)
    assert (row["day"], row["time"]) == (dt.date(2024, 2, 29), dt.time(23, 59, 58, 1))
    assert (row["price"], row["maybe"], row["empty"], row["wrapped"]) == (Decimal("-2.56"), 0, True, 0)
    assert again == value


@pytest.mark.parametrize("day", [(1, 1, 1), (1582, 10, 15), (1970, 1, 1), (2000, 2, 29), (9999, 12, 31)])
def test_dates_are_restored(day: tuple[int, int, int]) -> None:
    value = new(day={"year": day[0], "month": day[1], "day": day[2]}).SerializeToString()
    row, again = row_and_bytes(value)
    assert (row["day"], again) == (dt.date(*day), value)


@pytest.mark.parametrize(
    ("unscaled", "digits"),
    [(0, 1), (5, 1), (-1, 1), (127, 3), (128, 3), (-128, 3), (-129, 3), (999_999, 6), (-999_999, 6)],
)
def test_decimals_are_restored(unscaled: int, digits: int) -> None:
    size = max(1, (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1)
    price = {"value": unscaled.to_bytes(size, "big", signed=True), "precision": digits, "scale": 2}
    value = new(price=price).SerializeToString()
    row, again = row_and_bytes(value)
    assert (row["price"], again) == (Decimal(unscaled).scaleb(-2), value)


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"at": {"nanos": 1_000_000_000}}, "at"),
        ({"at": {"seconds": 1 << 60}}, "at"),
        ({"day": {"year": 2024}}, "day"),
        ({"day": {"year": 2023, "month": 2, "day": 29}}, "day"),
        ({"time": {"hours": 24}}, "time"),
        ({"price": {"value": b"\x01", "precision": 1, "scale": 3}}, "price"),
        ({"price": {"value": b"\x0f\x42\x40", "precision": 7, "scale": 2}}, "price"),
        ({"price": {"value": b"\x01" * 17, "scale": 2}}, "price"),
        ({"state": 99}, "state"),
    ],
)
def test_field_is_null_when_its_column_cannot_hold_it(fields: dict[str, Any], column: str) -> None:
    value = new(number=5, **fields).SerializeToString()
    row, again = row_and_bytes(value)
    assert (row["number"], row[column]) == (5, None)
    assert again != value


@pytest.mark.parametrize(
    "value",
    [
        new(at={"seconds": 5, "nanos": 999}).SerializeToString(),
        new(self={"number": 5}).SerializeToString(),
        new(object={"fields": {"a": {"list_value": {}}}}).SerializeToString(),
        b"\x08\x00",  # a zero, which is optional
        b"\x08\x85\x00",  # a varint with leading zeros
        b"\x10\x01\x08\x01",  # another order
        b"\xfa\x07\x01x",  # an unknown field
        b"\x8b\x08\x08\x01\x8c\x08",  # an unknown group
        b"\x0a\x01x",  # a number with the wire type of a string
        b"\x90\x01\x02\x90\x01\x04",  # numbers that could be packed
    ],
    ids=range(10),
)
def test_other_encodings_are_decoded_and_not_restored(value: bytes) -> None:
    assert row_and_bytes(value)[1] not in (None, value)


def test_duplicate_fields_are_merged() -> None:
    one = new(number=1, text="a", inner={"a": 1, "b": ["x"]}, packed=[1], inners={"k": {"a": 1}})
    other = new(number=2, inner={"b": ["y"]}, packed=[-2], inners={"k": {"a": 2}})
    row, again = row_and_bytes(one.SerializeToString() + other.SerializeToString())
    assert (row["number"], row["text"], row["inner"]) == (2, "a", {"a": 1, "b": ["x", "y"]})
    assert (row["packed"], row["inners"]) == ([1, -2], [("k", {"a": 2, "b": []})])
    one.MergeFrom(other)
    assert again == one.SerializeToString()
    last = new(inner={"a": 1}).SerializeToString() + new(name="n").SerializeToString()
    assert row_and_bytes(last)[0]["inner"] is None


def test_last_entry_of_a_duplicate_key_counts() -> None:
    value = b"\x82\x01\x07\x0a\x01k\x12\x02\x08\x01" + b"\x82\x01\x07\x0a\x01k\x12\x02\x08\x02"
    row, again = row_and_bytes(value)
    assert row["inners"] == [("k", {"a": 2, "b": []})]
    assert again == value[10:]


def test_map_entries_without_key_or_value_have_defaults() -> None:
    row, again = row_and_bytes(b"\x82\x01\x00" + b"\x82\x01\x03\x0a\x01k")
    assert row["inners"] == [("", {"a": 0, "b": []}), ("k", {"a": 0, "b": []})]
    assert again == b"\x82\x01\x04\x0a\x00\x12\x00" + b"\x82\x01\x05\x0a\x01k\x12\x00"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x08", "field number: the value is truncated inside"),
        (b"\x08" + b"\xff" * 11, "field number: a varint has more than ten bytes"),
        (b"\x00\x01", "invalid field number"),
        (b"\x0f", "or wire type"),
        (b"\x1a\x05abc", "field text: a field is longer than its message"),
        (b"\x1a\xff\xff\xff\xff\x0f", "field text: a field is longer"),
        (b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "field text: a varint has more than ten bytes, or a length"),
        (b"\x1a\x01\xff", "field text: the string is not UTF-8"),
        (b"\x7a\x03\x12\x01\xc0", "field inner.b: the string is not UTF-8"),
        (b"\x82\x01\x03\x0a\x01\x80", "field inners.key: the string is not UTF-8"),
        (b"\x92\x01\x01\x80", "field packed: the value is truncated inside"),
        (b"\x8b\x08", "the value is truncated inside"),
        (b"\x8b\x08\x94\x08", "a group is not closed"),
        (b"\x8c\x08", "a group is not closed"),
        (b"\x8b\x08" * 200, "nested too deep"),
    ],
)
def test_reason_describes_an_invalid_message(value: bytes, why: str) -> None:
    assert why in problem(value)


def test_number_of_list_slots_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 1000)
    assert "its lists have more than" in problem(b"\xa2\x01\x00" * 1000)
    row, _ = row_and_bytes(b"\xa2\x01\x00" * 200)
    assert len(row["wides"]) == 200


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "OTHER"},
        {"states": ["NEW", None]},
        {"list": [None]},
        {"day": dt.date(1, 1, 1) - dt.timedelta(0), "empty": False},
        {"inners": [("k", None)]},
    ],
)
def test_row_is_null_when_it_cannot_be_encoded(columns: dict[str, Any]) -> None:
    kind = to_arrow(codec().decode(located([b""])).buffers).type
    array = pa.array([{"number": 1}, columns, {"number": 2}], kind)
    assert bytes_of(codec().encode(from_arrow(array, codec().layout).buffers)) == [b"\x08\x01", None, b"\x08\x02"]


def test_required_fields_and_defaults_of_proto2_are_encoded() -> None:
    fields = 'required int32 a = 1; optional string b = 2 [default = "x"]; repeated int32 c = 3;'
    writer = WriterSchema(1, "PROTOBUF", f'syntax = "proto2"; message A {{ {fields} }}')
    own = codec_of(writer)
    values: list[bytes | None] = [b"\x08\x00", b"", b"\x08\x01\x12\x00\x18\x05\x18\x06", b"\x08\x01\x12\x01\xff"]
    decoded = own.decode(located(values))
    assert to_arrow(decoded.buffers).to_pylist() == [
        {"a": 0, "b": None, "c": []},
        {"a": None, "b": None, "c": []},
        {"a": 1, "b": "", "c": [5, 6]},
        {"a": 1, "b": None, "c": []},
    ]
    assert bytes_of(own.encode(decoded.buffers)) == [values[0], None, values[2], b"\x08\x01"]


def test_codec_uses_the_message_of_the_writer_schema() -> None:
    text = 'syntax = "proto3"; message A { int32 a = 1; } message B { message C { int32 c = 1; } }'
    assert codec_of(WriterSchema(1, "PROTOBUF", text, message=(1, 0))).shape.fields[0].name == "c"


def test_empty_batch_is_decoded_and_encoded() -> None:
    decoded = codec().decode(located([]))
    assert len(decoded.buffers) == 0
    assert codec().encode(decoded.buffers).size.size == 0
