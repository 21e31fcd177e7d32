"""Avro codec: valid encodings and invalid ones, case by case. Random schemas: tests/property/test_avro_values.py."""

import json
import math
import struct
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.typed.column_buffers import bytes_of, rows_of
from tests.harness.typed.reference_avro_codec import long, sized

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.format_codecs import codec_of
from lakestream.errors import Corrupt, Rejected
from lakestream.schemas.writer_schema import WriterSchema

INTS = {"type": "array", "items": "int"}


def codec(raw: Any) -> Codec:
    return codec_of(WriterSchema(1, "AVRO", json.dumps(raw)))


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def columns(made: Codec, *values: bytes) -> list[Any]:
    decoded = made.decode(ByteSpans.of(pa.array(values, pa.binary())))
    assert not decoded.problems.any(), made.reason(int(decoded.problems.max()))
    return rows_of(decoded.buffers)


def problem(made: Codec, value: bytes) -> str:
    decoded = made.decode(ByteSpans.of(pa.array([value], pa.binary())))
    assert rows_of(decoded.buffers) == [None]
    return made.reason(int(decoded.problems[0]))


def rewritten(made: Codec, *values: bytes) -> list[bytes | None]:
    decoded = made.decode(ByteSpans.of(pa.array(values, pa.binary())))
    return bytes_of(made.encode(decoded.buffers))


@pytest.mark.parametrize(
    "odd",
    [
        long(2) + long(1) + long(2) + long(1) + long(3) + long(0),
        long(-3) + long(3) + long(1) + long(2) + long(3) + long(0),
        long(-1) + long(1) + long(1) + long(2) + long(2) + long(3) + long(0),
        b"\x86\x00" + long(1) + long(2) + long(3) + long(0),
        long(3) + b"\x82\x00" + long(2) + long(3) + long(0),
    ],
)
def test_lists_in_other_blocks_decode_to_the_same_columns(odd: bytes) -> None:
    made = codec(record(a=INTS))
    assert columns(made, odd) == [{"a": [1, 2, 3]}]
    assert rewritten(made, odd) == [long(3) + long(1) + long(2) + long(3) + long(0)]


def test_empty_list_is_not_null() -> None:
    made = codec(record(a=["null", INTS]))
    assert columns(made, long(0), long(1) + long(0)) == [{"a": None}, {"a": []}]
    assert rewritten(made, long(0), long(1) + long(0)) == [long(0), long(1) + long(0)]


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        (record(a="int"), b"", "field a: the value is truncated"),
        (record(a="int"), b"\x80", "field a: the value is truncated"),
        (record(a="int"), b"\xff" * 10, "field a: the value is truncated"),
        (record(a="int"), long(2**31), "field a: the number exceeds the range of its type"),
        (record(a="int"), long(1) + b"x", "bytes are left over after the value"),
        (record(a={"type": "int", "logicalType": "time-millis"}), long(2**31), "field a: the number exceeds"),
        (record(a="string"), long(2**60), "field a: the length is invalid, or exceeds the value"),
        (record(a="string"), long(-1), "field a: the length is invalid"),
        (record(a="string"), sized(b"\xff"), "field a: the string is not UTF-8"),
        (record(a="string"), sized(b"aaaaaaaaaaaaaaaa\xed\xa0\x80"), "field a: the string is not UTF-8"),
        (record(a="bytes"), long(4) + b"abc", "field a: the length"),
        (record(a="boolean"), b"\x02", "field a: the boolean is neither 0 nor 1"),
        (record(a="float"), b"abc", "field a: the value is truncated"),
        (record(a="double"), b"abcdefg", "field a: the value is truncated"),
        (record(a={"type": "fixed", "name": "F", "size": 2}), b"a", "field a: the value is truncated"),
        (record(a={"type": "enum", "name": "E", "symbols": ["x"]}), long(1), "field a: the enum has no such symbol"),
        (record(a={"type": "enum", "name": "E", "symbols": ["x"]}), long(-1), "field a: the enum has no such symbol"),
        (record(a=["null", "int"]), long(2), "field a: the union has no such branch"),
        (record(a=["null", "int"]), long(-1), "field a: the union has no such branch"),
        (record(a=INTS), long(2**60), "field a: the length"),
        (record(a=INTS), long(-(2**63)) + long(1), "field a: the length"),
        (
            record(a={"type": "map", "values": "int"}),
            long(1) + sized(b"\xff") + long(1),
            "field a{key}: the string is not UTF-8",
        ),
        (record(a={"type": "array", "items": record(b="int") | {"name": "S"}}), long(1) + b"\x80", "field a[].b"),
    ],
)
def test_reason_has_the_field_and_the_problem(schema: Any, value: bytes, says: str) -> None:
    assert says in problem(codec(schema), value)


def test_items_without_bytes_are_skipped_without_counting() -> None:
    made = codec(record(a={"type": "array", "items": "null"}, b="int"))
    assert columns(made, (long(2**60) * 3) + long(0) + long(7)) == [{"b": 7}]
    empty = {"type": "array", "items": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}}
    assert columns(codec(record(a=empty, b="int")), long(2**60) + long(0) + long(7)) == [{"b": 7}]


def test_nested_empty_records_are_skipped() -> None:
    raw: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, 40):
        parts = [{"name": "a", "type": raw}, {"name": "b", "type": f"R{level - 1}"}]
        raw = {"type": "record", "name": f"R{level}", "fields": parts}
    made = codec(record(a={"type": "array", "items": raw}, b="int"))
    assert columns(made, long(2**60) + long(0) + long(7)) == [{"b": 7}]


def test_keys_of_maps_with_null_values_are_skipped() -> None:
    made = codec(record(a={"type": "map", "values": "null"}, b="int"))
    assert columns(made, long(1) + sized(b"x") + long(0) + long(7)) == [{"b": 7}]


def test_smallest_nanosecond_timestamp_does_not_overflow() -> None:
    made = codec(record(a={"type": "long", "logicalType": "timestamp-nanos"}))
    assert columns(made, long(-(2**63))) == [{"a": -9_223_372_036_854_776}]
    assert rewritten(made, long(-(2**63))) == [None]


def test_map_with_duplicate_key_is_null_and_not_restored() -> None:
    """Some engines fail on such a map."""
    made = codec(record(a={"type": "map", "values": "int"}, b="int"))
    entry = sized(b"x") + long(1)
    values = [long(2) + entry + entry + long(0) + long(7), long(1) + entry + long(0) + long(7)]
    decoded = made.decode(ByteSpans.of(pa.array(values, pa.binary())))
    array = to_arrow(decoded.buffers, held=decoded.held)
    assert array.to_pylist() == [{"a": None, "b": 7}, {"a": [("x", 1)], "b": 7}]
    again = from_arrow(array, decoded.buffers.layout)
    assert bytes_of(made.encode(again.buffers)) == [None, values[1]]


def test_from_arrow_fails_when_a_double_is_not_a_float() -> None:
    """The column was widened for another writer schema, and an engine changed the value."""
    made = codec(record(a="float"))
    layout = made.decode(ByteSpans.of(pa.array([b"\0\0\0\0"], pa.binary()))).buffers.layout

    def wide(*numbers: float | None) -> Any:
        return pa.array([{"a": number} for number in numbers], pa.struct([("a", pa.float64())]))

    fine = from_arrow(wide(0.5, math.nan, math.inf, -0.0), layout)
    assert bytes_of(made.encode(fine.buffers))[0] == struct.pack("<f", 0.5)
    with pytest.raises(
        Corrupt, match="column a is double, which cannot be read as float: some values have more digits"
    ):
        from_arrow(wide(0.5, 0.1), layout)


def test_recursive_fields_are_skipped() -> None:
    tree = record(a="int", next=["null", "R"], all={"type": "array", "items": "R"}, z="int")
    made = codec(tree)
    leaf = long(1) + long(0) + long(0) + long(2)
    nested = long(1) + long(1) + leaf + long(2) + leaf + leaf + long(0) + long(3)
    assert columns(made, leaf, nested) == [{"a": 1, "z": 2}, {"a": 1, "z": 3}]
    plain, short = rewritten(made, leaf, nested)
    assert plain == leaf
    assert short == long(1) + long(0) + long(0) + long(3)
    deep = (long(1) + long(1)) * 300
    assert "nested deeper than 256 levels" in problem(made, deep)
    assert "nested deeper than 256 levels" in problem(codec(record(a="R")), b"")


def test_union_of_several_types_has_a_column_for_each() -> None:
    empty = {"type": "record", "name": "Empty", "fields": []}
    made = codec(record(a=["null", "int", "string", empty]))
    values = [long(0), long(1) + long(5), long(2) + sized(b"x"), long(3)]
    assert columns(made, *values) == [
        {"a": None},
        {"a": {"int": 5, "string": None}},
        {"a": {"int": None, "string": "x"}},
        {"a": {"int": None, "string": None}},
    ]
    assert rewritten(made, *values) == values


def test_field_is_null_when_its_column_cannot_hold_it() -> None:
    day = {"type": "int", "logicalType": "time-millis"}
    money = {"type": "bytes", "logicalType": "decimal", "precision": 2}
    id_ = {"type": "string", "logicalType": "uuid"}
    made = codec(record(a=day, b=money, c=id_, d="int"))
    value = long(86_400_000) + sized(b"\x00\x64") + sized(b"no uuid") + long(1)
    assert columns(made, value) == [{"a": None, "b": None, "c": None, "d": 1}]
    assert rewritten(made, value) == [None]


def test_nanoseconds_become_microseconds() -> None:
    made = codec(record(a={"type": "long", "logicalType": "timestamp-nanos"}))
    values = [long(1_001), long(-1), long(2_000)]
    assert columns(made, *values) == [{"a": 1}, {"a": -1}, {"a": 2}]
    assert rewritten(made, *values) == [long(1_000), long(-1_000), long(2_000)]


def test_rows_are_encoded_when_the_estimated_buffer_is_too_small() -> None:
    """Enum symbols are encoded as numbers, UUIDs as text: no estimate is always right."""
    made = codec(record(a={"type": "array", "items": {"type": "string", "logicalType": "uuid"}}, b="bytes"))
    text = sized(b"01234567-89ab-cdef-0123-456789abcdef")
    values = [long(500) + text * 500 + long(0) + sized(b"x" * 100_000) for _ in range(20)]
    assert rewritten(made, *values) == values


def test_enum_of_many_symbols_is_restored() -> None:
    made = codec(record(a={"type": "enum", "name": "E", "symbols": [f"S{n:x}" for n in range(5_000)]}))
    values = [long(n) for n in range(0, 5_000, 7)]
    assert columns(made, *values) == [{"a": f"S{n:x}"} for n in range(0, 5_000, 7)]
    assert rewritten(made, *values) == values


def test_schema_that_is_not_a_record_has_one_column() -> None:
    made = codec("string")
    assert columns(made, sized(b"x")) == [{"value": "x"}]
    assert rewritten(made, sized(b"x")) == [sized(b"x")]
    assert columns(codec("null"), b"") == [{}]
    assert rewritten(codec("null"), b"") == [b""]


def test_codec_is_made_with_references_and_rejected_for_other_formats() -> None:
    money = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "a", "type": "int"}]})
    line = json.dumps({"type": "record", "name": "Line", "fields": [{"name": "m", "type": "Money"}]})
    made = codec_of(WriterSchema(1, "AVRO", json.dumps(record(l="Line")), (("money", money), ("line", line))))
    assert columns(made, long(4)) == [{"l": {"m": {"a": 4}}}]
    with pytest.raises(Rejected, match="schema 3 has the format XML, which is not supported"):
        codec_of(WriterSchema(3, "XML", ""))
