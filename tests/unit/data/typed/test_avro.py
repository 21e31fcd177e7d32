"""What Avro's writers may do, and what nobody should, one by one. For any schema: property/test_avro_values.py."""

import json
import math
import struct
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.unit.data.typed.frames import bytes_of, rows_of
from tests.unit.data.typed.plain_avro import long, sized

from lakestream.data.table.located import Located
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.codecs import codec_of
from lakestream.errors import Corrupt, Rejected
from lakestream.schemas.writers import Writer

INTS = {"type": "array", "items": "int"}


def codec(raw: Any) -> Codec:
    return codec_of(Writer(1, "AVRO", json.dumps(raw)))


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def columns(made: Codec, *values: bytes) -> list[Any]:
    decoded = made.decode(Located.of(pa.array(values, pa.binary())))
    assert not decoded.problems.any(), made.reason(int(decoded.problems.max()))
    return rows_of(decoded.frame)


def problem(made: Codec, value: bytes) -> str:
    decoded = made.decode(Located.of(pa.array([value], pa.binary())))
    assert rows_of(decoded.frame) == [None]
    return made.reason(int(decoded.problems[0]))


def rewritten(made: Codec, *values: bytes) -> list[bytes | None]:
    decoded = made.decode(Located.of(pa.array(values, pa.binary())))
    return bytes_of(made.encode(decoded.frame))


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
def test_lists_in_other_blocks_mean_the_same(odd: bytes) -> None:
    made = codec(record(a=INTS))
    assert columns(made, odd) == [{"a": [1, 2, 3]}]
    assert rewritten(made, odd) == [long(3) + long(1) + long(2) + long(3) + long(0)]


def test_the_empty_list_is_not_null() -> None:
    made = codec(record(a=["null", INTS]))
    assert columns(made, long(0), long(1) + long(0)) == [{"a": None}, {"a": []}]
    assert rewritten(made, long(0), long(1) + long(0)) == [long(0), long(1) + long(0)]


@pytest.mark.parametrize(
    ("schema", "value", "says"),
    [
        (record(a="int"), b"", "field a: it ends too early"),
        (record(a="int"), b"\x80", "field a: it ends too early"),
        (record(a="int"), b"\xff" * 10, "field a: it ends too early"),
        (record(a="int"), long(2**31), "field a: the number is wider than its type"),
        (record(a="int"), long(1) + b"x", "bytes are left over behind the value"),
        (record(a={"type": "int", "logicalType": "time-millis"}), long(2**31), "field a: the number is wider"),
        (record(a="string"), long(2**60), "field a: the length is none, or more than there is"),
        (record(a="string"), long(-1), "field a: the length is none"),
        (record(a="string"), sized(b"\xff"), "field a: it is no text"),
        (record(a="string"), sized(b"aaaaaaaaaaaaaaaa\xed\xa0\x80"), "field a: it is no text"),
        (record(a="bytes"), long(4) + b"abc", "field a: the length"),
        (record(a="boolean"), b"\x02", "field a: it is neither true nor false"),
        (record(a="float"), b"abc", "field a: it ends too early"),
        (record(a="double"), b"abcdefg", "field a: it ends too early"),
        (record(a={"type": "fixed", "name": "F", "size": 2}), b"a", "field a: it ends too early"),
        (record(a={"type": "enum", "name": "E", "symbols": ["x"]}), long(1), "field a: the enum has no such symbol"),
        (record(a={"type": "enum", "name": "E", "symbols": ["x"]}), long(-1), "field a: the enum has no such symbol"),
        (record(a=["null", "int"]), long(2), "field a: the union has no such branch"),
        (record(a=["null", "int"]), long(-1), "field a: the union has no such branch"),
        (record(a=INTS), long(2**60), "field a: the length"),
        (record(a=INTS), long(-(2**63)) + long(1), "field a: the length"),
        (record(a={"type": "map", "values": "int"}), long(1) + sized(b"\xff") + long(1), "field a{key}: it is no text"),
        (record(a={"type": "array", "items": record(b="int") | {"name": "S"}}), long(1) + b"\x80", "field a[].b"),
    ],
)
def test_what_is_wrong_is_said_with_the_field(schema: Any, value: bytes, says: str) -> None:
    assert says in problem(codec(schema), value)


def test_very_many_items_of_no_bytes_cost_nothing() -> None:
    made = codec(record(a={"type": "array", "items": "null"}, b="int"))
    assert columns(made, (long(2**60) * 3) + long(0) + long(7)) == [{"b": 7}]
    empty = {"type": "array", "items": {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}}
    assert columns(codec(record(a=empty, b="int")), long(2**60) + long(0) + long(7)) == [{"b": 7}]


def test_a_small_text_of_very_much_nothing() -> None:
    raw: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, 40):
        parts = [{"name": "a", "type": raw}, {"name": "b", "type": f"R{level - 1}"}]
        raw = {"type": "record", "name": f"R{level}", "fields": parts}
    made = codec(record(a={"type": "array", "items": raw}, b="int"))
    assert columns(made, long(2**60) + long(0) + long(7)) == [{"b": 7}]


def test_maps_of_nothing_have_keys() -> None:
    made = codec(record(a={"type": "map", "values": "null"}, b="int"))
    assert columns(made, long(1) + sized(b"x") + long(0) + long(7)) == [{"b": 7}]


def test_the_first_nanosecond_does_not_wrap_around() -> None:
    made = codec(record(a={"type": "long", "logicalType": "timestamp-nanos"}))
    assert columns(made, long(-(2**63))) == [{"a": -9_223_372_036_854_776}]
    assert rewritten(made, long(-(2**63))) == [None]


def test_a_map_with_a_key_twice_keeps_its_bytes() -> None:
    """Its column is null: there are engines that fail on such a map."""
    made = codec(record(a={"type": "map", "values": "int"}, b="int"))
    entry = sized(b"x") + long(1)
    values = [long(2) + entry + entry + long(0) + long(7), long(1) + entry + long(0) + long(7)]
    decoded = made.decode(Located.of(pa.array(values, pa.binary())))
    array = to_arrow(decoded.frame, held=decoded.held)
    assert array.to_pylist() == [{"a": None, "b": 7}, {"a": [("x", 1)], "b": 7}]
    again = from_arrow(array, decoded.frame.layout)
    assert bytes_of(made.encode(again.frame)) == [None, values[1]]


def test_a_number_that_was_changed_to_one_with_more_digits_is_no_float_any_more() -> None:
    """Its column was widened for others, and somebody wrote into it."""
    made = codec(record(a="float"))
    layout = made.decode(Located.of(pa.array([b"\0\0\0\0"], pa.binary()))).frame.layout

    def wide(*numbers: float | None) -> Any:
        return pa.array([{"a": number} for number in numbers], pa.struct([("a", pa.float64())]))

    fine = from_arrow(wide(0.5, math.nan, math.inf, -0.0), layout)
    assert bytes_of(made.encode(fine.frame))[0] == struct.pack("<f", 0.5)
    with pytest.raises(Corrupt, match="column a is double, which cannot be read as float: some have more digits"):
        from_arrow(wide(0.5, 0.1), layout)


def test_what_holds_itself_is_passed_over() -> None:
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


def test_unions_of_several() -> None:
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


def test_values_that_columns_cannot_say_are_null_there() -> None:
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


def test_rows_larger_than_the_room_guessed() -> None:
    """Symbols of enums are written as numbers, and texts may come from anywhere: no guess is always right."""
    made = codec(record(a={"type": "array", "items": {"type": "string", "logicalType": "uuid"}}, b="bytes"))
    text = sized(b"01234567-89ab-cdef-0123-456789abcdef")
    values = [long(500) + text * 500 + long(0) + sized(b"x" * 100_000) for _ in range(20)]
    assert rewritten(made, *values) == values


def test_enums_of_many_symbols() -> None:
    made = codec(record(a={"type": "enum", "name": "E", "symbols": [f"S{n:x}" for n in range(5_000)]}))
    values = [long(n) for n in range(0, 5_000, 7)]
    assert columns(made, *values) == [{"a": f"S{n:x}"} for n in range(0, 5_000, 7)]
    assert rewritten(made, *values) == values


def test_a_schema_that_is_no_record() -> None:
    made = codec("string")
    assert columns(made, sized(b"x")) == [{"value": "x"}]
    assert rewritten(made, sized(b"x")) == [sized(b"x")]
    assert columns(codec("null"), b"") == [{}]
    assert rewritten(codec("null"), b"") == [b""]


def test_a_writer_brings_what_it_refers_to() -> None:
    money = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "a", "type": "int"}]})
    line = json.dumps({"type": "record", "name": "Line", "fields": [{"name": "m", "type": "Money"}]})
    made = codec_of(Writer(1, "AVRO", json.dumps(record(l="Line")), (("money", money), ("line", line))))
    assert columns(made, long(4)) == [{"l": {"m": {"a": 4}}}]
    with pytest.raises(Rejected, match="values of schema 3 are XML"):
        codec_of(Writer(3, "XML", ""))
