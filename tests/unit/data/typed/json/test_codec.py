"""JSON codec: text becomes columns and the same text again; an invalid value is a problem of its row only."""

import ctypes
import json
import random
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.json.codec import JsonCodec, JsonDecoded, part_of_text
from lakestream.data.typed.json.text_style import (
    DOUBLES,
    MomentForm,
    NumberAndDateFormat,
    Style,
    encode_style,
    format_double,
    read_style,
)
from lakestream.data.typed.json.write_kernels import AS_Z, DIGITS_IN_GROUPS, NO_ZONE
from lakestream.schemas.writer_schema import WriterSchema

STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def codec_for(schema: Any, style: Style | None = None) -> JsonCodec:
    return JsonCodec(part_of_text(json.dumps(schema)), style or Style())


def located(values: Sequence[bytes | None]) -> ByteSpans:
    return ByteSpans.of(pa.array(values, pa.binary()))


def texts(found: ByteSpans) -> list[bytes | None]:
    rows = zip(found.address.tolist(), found.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in rows]


def rows(decoded: JsonDecoded) -> list[Any]:
    return list(to_arrow(decoded.buffers, held=decoded.held).to_pylist())


def through(codec: JsonCodec, values: Sequence[bytes | None]) -> tuple[JsonDecoded, list[bytes | None]]:
    """Decodes values, and encodes them again from Arrow columns."""
    held = located(values)
    decoded = codec.decode(held)
    decoded = replace(decoded, held=(held, *decoded.held))
    back = from_arrow(to_arrow(decoded.buffers, held=decoded.held), codec.layout)
    assert texts(codec.encode(back.buffers)) == texts(codec.encode(decoded.buffers))
    return decoded, texts(codec.encode(decoded.buffers))


EVERYTHING = record(
    whole=INTEGER,
    text=STRING,
    real=NUMBER,
    truth={"type": "boolean"},
    day={"type": "string", "format": "date"},
    hour={"type": "string", "format": "time"},
    moment={"type": "string", "format": "date-time"},
    id={"type": "string", "format": "uuid"},
    many={"type": "array", "items": record(x=INTEGER, y={"type": "array", "items": STRING})},
    named={"type": "object", "additionalProperties": NUMBER},
    either={"type": ["integer", "string", "boolean"]},
    any={},
)
VALUE = {
    "whole": -(2**63),
    "text": 'é "quoted" \\ \n\t\b\f\r\x01\x7f 😀',
    "real": 1.5e-7,
    "truth": True,
    "day": "1969-12-31",
    "hour": "23:59:59.000001",
    "moment": "2024-02-29T23:59:59.123456+00:00",
    "id": "01234567-89ab-cdef-0123-456789abcdef",
    "many": [{"x": 1, "y": ["a", "é"]}, {"x": 2, "y": []}, None, {}],
    "named": {"k": 1.0, "é": 2.5},
    "either": "x",
    "any": {"z": [1, 2.50, {"q": None}]},
}


def test_every_type_has_a_column_and_is_restored() -> None:
    codec = codec_for(
        EVERYTHING, Style(root=NumberAndDateFormat(keys={"hour": NumberAndDateFormat(moment=MomentForm(zone=NO_ZONE))}))
    )
    ordered = {key: VALUE[key] for key in ("hour", *(key for key in VALUE if key != "hour"))}
    value = json.dumps(ordered).encode()
    decoded, back = through(codec, [value])
    assert back == [value]
    assert rows(decoded) == [
        {
            "whole": -(2**63),
            "text": VALUE["text"],
            "real": 1.5e-7,
            "truth": True,
            "day": date(1969, 12, 31),
            "hour": time(23, 59, 59, 1),
            "moment": datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC),
            "id": UUID("01234567-89ab-cdef-0123-456789abcdef"),
            "many": [{"x": 1, "y": ["a", "é"]}, {"x": 2, "y": []}, None, {"x": None, "y": None}],
            "named": [("k", 1.0), ("é", 2.5)],
            "either": None,
            "either_string": "x",
            "either_boolean": None,
            "any": '{"z": [1, 2.5, {"q": null}]}',
        }
    ]


def test_connect_dates_and_times_are_restored_as_numbers() -> None:
    names = {"Date": "int32", "Time": "int32", "Timestamp": "int64"}
    prefix = "org.apache.kafka.connect.data."
    hinted = {name: {"type": "integer", "title": prefix + name, "connect.type": kind} for name, kind in names.items()}
    value = b'{"Date": 1, "Time": 1500, "Timestamp": -1}'
    decoded, back = through(codec_for(record(**hinted)), [value, b'{"Time": 86400000}', b'{"Date": 3000000000}'])
    assert back == [value, None, None]
    assert rows(decoded)[0] == {
        "Date": date(1970, 1, 2),
        "Time": time(0, 0, 1, 500_000),
        "Timestamp": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "invalid JSON"),
        (b"{", "invalid JSON"),
        (b'{"a": 1,}', "invalid JSON"),
        (b'{"a" 1}', "invalid JSON"),
        (b'{"a": 01}', "invalid JSON"),
        (b'{"a": 1.}', "invalid JSON"),
        (b'{"a": +1}', "invalid JSON"),
        (b'{"a": nul}', "invalid JSON"),
        (b'{"a": NaN}', "invalid JSON"),
        (b'{"b": "\x01"}', "invalid JSON"),
        (b'{"b": "\\x"}', "invalid JSON"),
        (b'{"b": "\\u12"}', "invalid JSON"),
        (b'{"a": 1} x', "extra data"),
        (b'{"b": "\xff"}', "not UTF-8"),
        (b'{"b": "\xed\xa0\x80"}', "not UTF-8"),
        (b'{"b": "\\ud800"}', "surrogate"),
        (b'{"a": 1, "a": 2}', "duplicate key"),
        (b'{"other": ' + b"[" * 1000 + b"]" * 1000 + b"}", "deeper"),
        (b'{"a": "x"}', "a is of type string"),
        (b'{"a": 1.5}', "a is of type number"),
        (b'{"a": 9223372036854775808}', "a is of type integer"),
        (b'{"l": [{"x": "1"}, {"x": []}, {"x": {"q": 1}}]}', r"l\[\].x is of type object"),
        (b"[]", ""),
        (b"[1]", "the value is of type array"),
    ],
)
def test_invalid_value_is_a_problem_of_its_row_only(text: bytes, reason: str) -> None:
    codec = codec_for(record(a=INTEGER, b=STRING, l={"type": "array", "items": record(x=STRING)}))
    good = b'{"a": 1, "b": "x", "l": [{"x": "y"}]}'
    decoded, back = through(codec, [good, text, good])
    assert back == [good, None, good]
    assert decoded.problems[0] == decoded.problems[2] == 0
    assert rows(decoded)[1] in ({"a": None, "b": None, "l": None}, None)
    if reason:
        assert re.search(reason, codec.reason(int(decoded.problems[1])))


def test_whole_number_is_an_integer_in_any_notation() -> None:
    values = [b'{"a": 1.0}', b'{"a": -12.3e1}', b'{"a": 5e18}', b'{"a": 0.00}', b'{"a": 1e19}', b'{"a": 1.5}']
    decoded, back = through(codec_for(record(a=INTEGER)), values)
    assert [row and row["a"] for row in rows(decoded)] == [1, -123, 5 * 10**18, 0, None, None]
    assert decoded.problems[:4].tolist() == [0, 0, 0, 0]
    assert back[:2] == [b'{"a": 1}', b'{"a": -123}']


def test_null_values_have_neither_columns_nor_problems() -> None:
    decoded, back = through(codec_for(record(a=INTEGER)), [None, b'{"a": 1}', None])
    assert back == [None, b'{"a": 1}', None]
    assert decoded.problems.tolist() == [0, 0, 0]


def test_unknown_keys_are_skipped_and_flagged() -> None:
    decoded, back = through(codec_for(record(a=INTEGER)), [b'{"x": [{"y": "\\u00e9"}], "a": 1}', b'{"a": 2}'])
    assert decoded.has_unknown_keys.tolist() == [True, False]
    assert back == [b'{"a": 1}', b'{"a": 2}']


def test_invalid_time_is_null_in_its_column_only() -> None:
    schema = record(a=INTEGER, t={"type": "string", "format": "date-time"}, u={"type": "string", "format": "uuid"})
    odd = [b'{"a": 1, "t": "2023-02-29T00:00:00Z"}', b'{"a": 2, "t": "yesterday"}', b'{"a": 3, "u": "no"}']
    decoded, back = through(codec_for(schema), odd)
    assert decoded.problems.tolist() == [0, 0, 0]
    assert [(row["a"], row["t"], row["u"]) for row in rows(decoded)] == [
        (1, None, None),
        (2, None, None),
        (3, None, None),
    ]
    assert back != odd


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MomentForm(3, 0, AS_Z), "2024-01-31T12:30:00.120Z"),
        (MomentForm(0, 0, AS_Z), "0001-01-01T00:00:00Z"),
        (MomentForm(6, 120), "2024-01-31T00:30:00.000001+02:00"),
        (MomentForm(DIGITS_IN_GROUPS, -90), "1960-01-31T12:30:00.500-01:30"),
        (MomentForm(gap=ord(" ")), "9999-12-31 23:59:59+00:00"),
    ],
)
def test_timestamps_are_restored_in_their_format(form: MomentForm, text: str) -> None:
    codec = codec_for({"type": "string", "format": "date-time"}, Style(root=NumberAndDateFormat(moment=form)))
    decoded, back = through(codec, [f'"{text}"'.encode()])
    assert back == [f'"{text}"'.encode()]
    assert rows(decoded) == [{"value": datetime.fromisoformat(text)}]


def doubles() -> list[float]:
    luck = random.Random(5)
    drawn = [struct.unpack("<d", struct.pack("<Q", luck.getrandbits(64)))[0] for _ in range(20_000)]
    powers = [10.0**power for power in range(-320, 309)] + [2.0**power for power in range(-1074, 1024)]
    plain = [round(luck.random() * 10 ** luck.randint(0, 8), luck.randint(0, 6)) for _ in range(5_000)]
    edges = [
        0.0,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        2.2250738585072014e-308,
        9007199254740993.0,
        123456789012345680.0,
    ]
    return [number for number in [*drawn, *powers, *plain, *edges] if np.isfinite(number)]


def test_doubles_are_restored_to_the_last_bit() -> None:
    numbers = doubles()
    codec = codec_for(NUMBER)
    decoded, back = through(codec, [repr(number).encode() for number in numbers])
    assert back == [repr(number).encode() for number in numbers]
    start = int(decoded.buffers.base[1])
    assert (decoded.buffers.bits[start : start + len(numbers)] == np.array(numbers).view(np.int64)).all()


@pytest.mark.parametrize("name", DOUBLES)
def test_doubles_are_written_in_every_format(name: str) -> None:
    numbers = doubles()[::7]
    values = [format_double(number, DOUBLES[name]).encode() for number in numbers]
    _, back = through(codec_for(NUMBER, Style(root=NumberAndDateFormat(double=name))), values)
    assert back == values


def test_double_formats_are_those_of_the_languages() -> None:
    assert [format_double(number, DOUBLES["js"]) for number in (1e21, 1e20, 1e-7, 1e-6, 5.0)] == [
        *("1e+21", "100000000000000000000", "1e-7", "0.000001", "5")
    ]
    assert [format_double(number, DOUBLES["java"]) for number in (1e7, 1e6, 1e-3, 1e-4, 1.25e10)] == [
        *("1.0E7", "1000000.0", "0.001", "1.0E-4", "1.25E10")
    ]
    assert [format_double(number, DOUBLES["rust"]) for number in (1e16, 1e15, 1e-6, 1e-5)] == [
        *("1e16", "1000000000000000.0", "1e-6", "0.00001")
    ]


def test_numbers_with_many_digits_become_the_nearest_double() -> None:
    long = [b"0." + b"1234567890" * 30, b"1" * 400 + b".5", b"9" * 25, b"1e400", b"-1e-400", b"0.1e-399"]
    decoded, _ = through(codec_for(NUMBER), long)
    found = [row["value"] for row in rows(decoded)]
    assert found == [float(long[0]), None, 1e25, None, -0.0, 0.0]


@pytest.mark.parametrize(
    ("escapes", "text"),
    [
        ({"ascii"}, rb'"\u00e9\ud83d\ude00\u007f\u0001\n/<"'),
        (set(), '"é😀\x7f\\u0001\\n/<"'.encode()),
        ({"upper"}, '"é\\u001F\\b"'.encode()),
        ({"upper", "ascii"}, rb'"\u00E9\u001F"'),
        ({"slashes"}, rb'"a\/b"'),
        ({"html", "long"}, '"\\u003cb\\u003e\\u0026\\u2028\\u0008é"'.encode()),
    ],
)
def test_strings_are_escaped_according_to_the_style(escapes: set[str], text: bytes) -> None:
    _, back = through(codec_for(STRING, Style(escapes=frozenset(escapes))), [text])
    assert back == [text]


def test_style_determines_key_order_and_nulls() -> None:
    keys = {"b": NumberAndDateFormat(void="null"), "a": NumberAndDateFormat(), "c": NumberAndDateFormat(void="[]")}
    style = Style(",", ":", frozenset(), NumberAndDateFormat(keys=keys))
    schema = record(a=INTEGER, b=STRING, c={"type": "null"})
    values = [b'{"b":null,"a":1,"c":[]}', b'{"b":"x","c":[]}']
    _, back = through(codec_for(schema, style), values)
    assert back == values
    assert read_style(encode_style(style)) == style


def test_value_that_is_not_an_object_has_one_column() -> None:
    values = [b'"text"', b"null", b'"\\u00e9"']
    decoded, back = through(codec_for(STRING), values)
    assert back == values
    assert rows(decoded) == [{"value": "text"}, {"value": None}, {"value": "é"}]


def test_codec_is_made_of_a_writer_schema() -> None:
    referring = record(a={"$ref": "other.json"})
    writer = WriterSchema(7, "JSON", json.dumps(referring), (("other.json", json.dumps(INTEGER)),), 7, True)
    found = codec_of(writer)
    assert [field.name for field in found.shape.fields] == ["a"]
    assert texts(found.encode(found.decode(located([b'{"a": 5}'])).buffers)) == [b'{"a": 5}']


def test_space_grows_with_the_values() -> None:
    """Lists, unescaped strings and doubles for Python get enough space, whatever the previous values needed."""
    codec = codec_for(record(l={"type": "array", "items": STRING}, d=NUMBER))
    small = [b'{"l": ["a"], "d": 1.5}'] * 10
    large = [json.dumps({"l": ["é" * 100] * 50, "d": 0.5}).encode()] * 500
    careful = [b'{"l": [], "d": 0.' + b"1" * 30 + b"}"] * 3_000
    for values in (small, large, small, careful, [*large, *careful]):
        decoded, back = through(codec, values)
        assert not decoded.problems.any()
        assert [one == other for one, other in zip(values, back, strict=True)] == [
            b"1" * 30 not in one for one in values
        ]


def test_truncated_values_are_problems_at_any_place() -> None:
    value = json.dumps(VALUE).encode()
    cut = [value[:size] for size in range(len(value))]
    decoded = codec_for(EVERYTHING).decode(located(cut))
    assert (decoded.problems != 0).all()


def test_arbitrary_bytes_are_decoded_without_error() -> None:
    luck = random.Random(9)
    value = json.dumps(VALUE).encode()
    values = []
    for _ in range(5_000):
        changed = bytearray(value)
        for _ in range(luck.randint(1, 4)):
            changed[luck.randrange(len(changed))] = luck.choice(b'{}[]":,\\u0e-\xff\xc3 tn')
        values.append(bytes(changed))
    codec = codec_for(EVERYTHING)
    decoded, _ = through(codec, values)
    for text, problem in zip(values, decoded.problems.tolist(), strict=True):
        assert problem == 0 or codec.reason(problem)
        if problem == 0:
            json.loads(text)


def test_space_of_empty_elements_is_bounded_by_their_bytes() -> None:
    codec = codec_for({"type": "array", "items": {"type": "array", "items": INTEGER}})
    decoded, back = through(codec, [b"[" + b"[], " * 100_000 + b"[]]"])
    assert len(back[0] or b"") == 400_004
    assert not decoded.problems.any()


# Types of Kafka Connect


def decimal(precision: int, scale: int) -> dict[str, Any]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    title = "org.apache.kafka.connect.data.Decimal"
    return {"type": "number", "title": title, "connect.type": "bytes", "connect.parameters": parameters}


COMPACT = Style(comma=",", colon=":")
CONNECT = record(
    price=decimal(9, 2),
    huge=decimal(38, 10),
    share=decimal(4, 4),
    count=decimal(20, 0),
    single={"type": "number", "connect.type": "float32"},
    raw={"type": "string", "connect.type": "bytes"},
    many={"type": "array", "items": {"oneOf": [{"type": "null"}, decimal(9, 2)]}},
    named={"type": "object", "additionalProperties": {"type": "string", "contentEncoding": "base64"}},
)


def test_connect_decimals_floats_and_bytes_are_restored() -> None:
    given = [
        b'{"price":12.50,"huge":-1234567890123456789012345678.0123456789,"share":0.0001,"count":18446744073709551615}',
        b'{"price":-0.05,"single":1.1,"raw":"AAEC/w==","many":[1.00,null,-2.25],"named":{"a":"","b":"YQ=="}}',
        b'{"single":-3.4028235e+38,"raw":"","many":[]}',
        b'{"price":0.00,"single":16777216.0,"raw":"YWI=","named":{}}',
        b'{"single":1e-45,"raw":"YWJj"}',
        None,
    ]
    decoded, back = through(codec_for(CONNECT, COMPACT), given)
    assert not decoded.problems.any()
    first, second, third, fourth, *_ = rows(decoded)
    assert first["price"] == Decimal("12.50")
    assert first["huge"] == Decimal("-1234567890123456789012345678.0123456789")
    assert (first["share"], first["count"]) == (Decimal("0.0001"), Decimal(2**64 - 1))
    assert second["single"] == np.float32(1.1)
    assert (second["raw"], second["many"]) == (b"\0\1\2\xff", [Decimal("1.00"), None, Decimal("-2.25")])
    assert second["named"] == [("a", b""), ("b", b"a")]
    assert (third["raw"], fourth["raw"], third["single"]) == (b"", b"ab", -np.finfo(np.float32).max)
    assert back == given


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(("price", text) for text in ("12345678.00", "1.005", "1e3", "{}")),
        *(("share", text) for text in ("1.0", "0.00001")),
        *(("count", text) for text in ("1.5", "123456789012345678901")),
        *(("single", text) for text in ("1e39", "-1e400")),
        *(("raw", text) for text in ('"A"', '"A==="', '"AA=A"', '"AAA*"', '"=AAA"', '"AA AA"', '"\\u00e4AAA"')),
    ],
)
def test_field_is_null_when_connect_cannot_have_written_it(key: str, text: str) -> None:
    good = b'{"price":1.00,"raw":"YQ=="}'
    decoded, back = through(codec_for(CONNECT, COMPACT), [good, f'{{"{key}":{text}}}'.encode(), good])
    assert not decoded.problems.any()
    assert rows(decoded)[1][key] is None
    assert rows(decoded)[0] == rows(decoded)[2]
    assert back[::2] == [good, good]


@pytest.mark.parametrize("key", ["price", "plain"])
@pytest.mark.parametrize(
    ("text", "kind"), [('"12.50"', "string"), ("true", "boolean"), ('{"a":1.00}', "object"), ("[1.00]", "array")]
)
def test_reason_has_the_type_when_a_decimal_is_not_a_number(key: str, text: str, kind: str) -> None:
    """The reason is the same as for a number of another format."""
    codec = codec_for(record(price=decimal(9, 2), plain=NUMBER), COMPACT)
    good = b'{"price":1.00,"plain":2.0}'
    decoded, back = through(codec, [good, f'{{"{key}":{text}}}'.encode(), good])
    assert codec.reason(int(decoded.problems[1])) == f"{key} is of type {kind}, which has no column"
    assert back == [good, None, good]


@pytest.mark.parametrize("text", ['{"price":12.5}', '{"price":-0.00}', '{"raw":"YR=="}', '{"single":0.1234567890123}'])
def test_other_notations_are_not_restored(text: str) -> None:
    decoded, (back,) = through(codec_for(CONNECT, COMPACT), [text.encode()])
    assert rows(decoded)[0] != dict.fromkeys(rows(decoded)[0])
    assert back != text.encode()
