"""Column types of Protobuf messages."""

import pytest

from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf
from lakestream.schemas.types import ListOf, MapOf, Struct, Type


def columns(body: str) -> dict[str, str]:
    imports = "".join(
        f'import "{name}.proto";'
        for name in (
            *(f"google/protobuf/{name}" for name in ("timestamp", "duration", "wrappers", "struct", "any", "empty")),
            *("google/type/date", "google/type/timeofday", "confluent/meta", "confluent/type/decimal"),
        )
    )
    shape = read_protobuf(Source(Format.PROTOBUF, f'syntax = "proto3"; {imports} message A {{ {body} }}')).shape()
    return {field.name: printed(field.type) for field in shape.fields}


def printed(kind: Type) -> str:
    match kind:
        case Struct(fields):
            return "struct<" + ", ".join(f"{field.name} {printed(field.type)}" for field in fields) + ">"
        case ListOf(element):
            return f"list<{printed(element)}>"
        case MapOf(key, value):
            return f"map<{key}, {printed(value)}>"
        case _:
            return str(kind)


TYPES = [
    *((name, "int") for name in ("int32", "sint32", "sfixed32")),
    *((name, "long") for name in ("int64", "sint64", "sfixed64", "uint32", "fixed32")),
    *((name, "decimal(20, 0)") for name in ("uint64", "fixed64")),
    ("bool", "boolean"),
    ("float", "float"),
    ("double", "double"),
    ("string", "string"),
    ("bytes", "binary"),
    ("google.protobuf.Timestamp", "timestamptz"),
    ("google.protobuf.Duration", "struct<seconds long, nanos int>"),
    ("google.protobuf.UInt32Value", "long"),
    ("google.protobuf.BytesValue", "binary"),
    ("google.protobuf.Any", "struct<type_url string, value binary>"),
    ("google.protobuf.Empty", "boolean"),
    ("google.type.Date", "date"),
    ("google.type.TimeOfDay", "time"),
    ("confluent.type.Decimal", "struct<value binary, precision long, scale int>"),
    (
        "google.protobuf.Struct",
        "struct<fields map<string, struct<null_value string, number_value double, string_value string,"
        " bool_value boolean>>>",
    ),
]


def test_types_are_converted_to_column_types() -> None:
    body = ""
    expected: dict[str, str] = {}
    for place, (kind, column) in enumerate(TYPES):
        a, b, c, e = (f"{name}{place}" for name in "abce")
        at = 4 * place
        body += f"{kind} {a} = {at + 1}; repeated {kind} {b} = {at + 2}; map<string, {kind}> {c} = {at + 3};"
        body += f"oneof d{place} {{ {kind} {e} = {at + 4}; }}"
        expected |= {a: column, b: f"list<{column}>", c: f"map<string, {column}>", e: column}
    assert columns(body) == expected


def test_confluent_decimal_is_a_decimal_column_when_the_field_declares_its_scale() -> None:
    params = '[(confluent.field_meta) = {params: [{key: "precision" value: "10"}, {key: "scale" value: "2"}]}]'
    assert columns(f"confluent.type.Decimal a = 1 {params};") == {"a": "decimal(10, 2)"}
    wrong = params.replace('"2"', '"many"')
    assert columns(f"confluent.type.Decimal a = 1 {wrong};")["a"].startswith("struct")


def test_recursive_and_empty_messages_are_omitted() -> None:
    assert columns("int32 a = 1; A b = 2; repeated A c = 3; map<int32, A> d = 4; message E {} E e = 5;") == {"a": "int"}
    assert columns("message B { A a = 1; int32 b = 2; } B b = 1;") == {"b": "struct<b int>"}
    with pytest.raises(Rejected, match="no field that can be stored in a column"):
        columns("A a = 1;")


def test_fields_of_the_shape_have_their_numbers() -> None:
    shape = read_protobuf(Source(Format.PROTOBUF, 'syntax = "proto3"; message A { int32 b = 7; int32 a = 2; }')).shape()
    assert [(field.name, field.number) for field in shape.fields] == [("b", 7), ("a", 2)]


def test_message_is_rejected_when_it_has_too_many_columns() -> None:
    body = (
        "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(30))
        + "message M30 { int32 a = 1; }"
    )
    with pytest.raises(Rejected, match="more than 5000 columns"):
        columns(body + "M0 a = 1;")
