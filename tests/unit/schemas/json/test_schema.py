"""JSON Schemas: all drafts, invalid schemas, references and column types."""

import json
import textwrap
import time
from typing import Any

import pytest

from lakestream.errors import Rejected
from lakestream.schemas.json.schema import JsonSchema, read_json_schema
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.types import ListOf, MapOf, Struct, Type


def read(schema: Any, *references: Reference) -> JsonSchema:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return read_json_schema(Source(Format.JSON, text, references))


def spelled(kind: Type) -> str:
    match kind:
        case Struct(fields):
            return "{" + ", ".join(f"{field.name} {spelled(field.type)}" for field in fields) + "}"
        case ListOf(element):
            return f"[{spelled(element)}]"
        case MapOf(_, value):
            return f"map<{spelled(value)}>"
        case _:
            return str(kind)


def columns(schema: Any, *references: Reference) -> str:
    return spelled(read(schema, *references).shape())[1:-1]


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def test_scalars_are_converted_to_columns() -> None:
    schema = record(a=STRING, b=INTEGER, c=NUMBER, d={"type": "boolean"})
    assert columns(schema) == "a string, b long, c double, d boolean"


def test_formats_of_strings_determine_the_column_type() -> None:
    formats = ("date", "time", "date-time", "uuid", "email")
    schema = record(**{name.replace("-", ""): {"type": "string", "format": name} for name in formats})
    assert columns(schema) == "date date, time time, datetime timestamptz, uuid uuid, email string"


def test_hints_of_kafka_connect_determine_the_column_type() -> None:
    def hinted(kind: str, title: str = "") -> dict[str, Any]:
        return {"type": "integer", "connect.type": kind, "title": title}

    prefix = "org.apache.kafka.connect.data."
    schema = record(
        a=hinted("int8"),
        b=hinted("int64"),
        c=hinted("int32", prefix + "Date"),
        d=hinted("int32", prefix + "Time"),
        e=hinted("int64", prefix + "Timestamp"),
    )
    assert columns(schema) == "a int, b long, c date, d time, e timestamptz"


def test_connect_decimals_floats_and_bytes_are_converted_to_columns() -> None:
    def decimal(**parameters: str) -> dict[str, Any]:
        title = "org.apache.kafka.connect.data.Decimal"
        return {"type": "number", "title": title, "connect.type": "bytes", "connect.parameters": parameters}

    sized = decimal(scale="2", **{"connect.decimal.precision": "9"})
    schema = record(
        a=sized,
        b=decimal(scale="10"),
        c={"oneOf": [{"type": "null"}, sized]},
        d={"type": "array", "items": sized},
        e={"type": "number", "connect.type": "float32"},
        f={"type": "number", "connect.type": "float64"},
        g={"type": "string", "connect.type": "bytes"},
        h={"type": "string", "contentEncoding": "base64"},
    )
    assert columns(schema) == (
        "a decimal(9, 2), b decimal(38, 10), c decimal(9, 2), d [decimal(9, 2)], e float, f double, g binary, h binary"
    )
    for odd in (decimal(), decimal(scale="x"), decimal(scale="-1"), decimal(scale="39"), sized | {"title": "Money"}):
        assert columns(record(a=odd)) == "a double"
    assert columns(record(a={**sized, "type": ["number", "string"]})) == "a double, a_binary binary"
    assert columns(record(a={"oneOf": [sized, {"type": "integer"}]})) == "a string", (
        "types without a column become JSON text"
    )


def test_nested_types_are_converted_to_columns() -> None:
    schema = record(
        inner=record(x=INTEGER),
        many={"type": "array", "items": record(y=STRING)},
        named={"type": "object", "additionalProperties": NUMBER},
        patterns={"type": "object", "patternProperties": {"^x": INTEGER}},
        pair={"type": "array", "items": [STRING, STRING]},
    )
    expected = "inner {x long}, many [{y string}], named map<double>, patterns map<long>, pair [string]"
    assert columns(schema) == expected


def test_null_type_adds_no_column() -> None:
    schema = record(
        a={"type": ["null", "string"]},
        b={"oneOf": [{"type": "null"}, INTEGER]},
        c={"anyOf": [NUMBER, {"type": "null"}]},
        never={"type": "null"},
    )
    assert columns(schema) == "a string, b long, c double"


def test_type_of_a_column_is_derived_from_enum_and_const() -> None:
    schema = record(a={"enum": ["x", "y", None]}, b={"const": 5}, c={"enum": [1, 2.5]}, d={"enum": [1, "x"]})
    assert columns(schema) == "a string, b long, c double, d long, d_string string"


def test_each_of_several_types_has_a_column() -> None:
    schema = record(x={"type": ["integer", "string"]}, l={"type": "array", "items": {"type": ["integer", "string"]}})
    assert columns(schema) == "x long, x_string string, l [string]"


def test_one_of_several_records_is_one_record() -> None:
    schema = {"oneOf": [record(a=STRING, k=INTEGER), record(b=NUMBER, k=STRING)]}
    assert columns(schema) == "a string, k long, k_string string, b double"


def test_all_of_several_records_is_one_record() -> None:
    schema = {
        **record(z={"type": "boolean"}),
        "allOf": [{"properties": {"a": STRING}}, {"$ref": "#/definitions/q"}],
        "definitions": {"q": {"properties": {"q": INTEGER}}},
    }
    assert columns(schema) == "z boolean, a string, q long"


def test_column_is_json_text_when_any_value_is_allowed() -> None:
    schema = record(a={}, b=True, c={"type": "object"}, d={"type": "array"}, e=record())
    assert columns(schema) == "a string, b string, c string, d [string], e string"


def test_column_is_json_text_when_the_schema_is_recursive() -> None:
    assert columns(record(v=INTEGER, next={"$ref": "#"})) == "v long, next string"


@pytest.mark.parametrize(
    ("schema", "column"),
    [
        (STRING, "value string"),
        ({"type": "array", "items": NUMBER}, "value [double]"),
        ({"type": "object", "additionalProperties": STRING}, "value map<string>"),
        (True, "value string"),
        (
            {"type": ["object", "array"], "properties": {"a": STRING}, "items": STRING},
            "value {a string}, value_list [string]",
        ),
    ],
)
def test_schema_that_is_not_a_record_is_one_column(schema: Any, column: str) -> None:
    assert columns(schema) == column


def test_column_names_differ_in_more_than_case() -> None:
    schema = record(**{"id": STRING, "ID": STRING, "a.b": STRING, "a_b": STRING, "": STRING})
    assert columns(schema) == "id string, ID_ string, a_b string, a_b_ string, _ string"


def test_references_are_resolved_by_name() -> None:
    city = Reference("city.json", json.dumps({"definitions": {"c": STRING}}))
    address = Reference("addr.json", json.dumps(record(c={"$ref": "city.json#/definitions/c"})), (city,))
    schema = {"$id": "http://example.com/s/root.json", **record(a={"$ref": "addr.json"})}
    assert columns(schema, address) == "a {c string}"


@pytest.mark.parametrize(
    "draft",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
    ],
)
def test_every_draft_is_supported(draft: str) -> None:
    schema = {"$schema": draft, **record(a={"$ref": "#/definitions/x"}), "definitions": {"x": STRING}}
    assert columns(schema) == "a string"
    with pytest.raises(Rejected, match="#/properties/a/type"):
        read({"$schema": draft, **record(a={"type": "text"})})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not valid JSON"),
        ('{"minimum": NaN}', "not valid JSON"),
        ('{"minimum": 1e999}', "range of a double"),
        ('"string"', "must be an object"),
        ('{"type": "foo"}', "#/type"),
        ('{"properties": {"a": {"minLength": -1}}}', "#/properties/a/minLength"),
        ('{"$ref": "#/nowhere"}', "cannot be resolved"),
        ('{"$ref": "http://127.0.0.1:1/x.json"}', "cannot be resolved"),
        ('{"$ref": "#"}', "resolves only to itself"),
        ('{"items": ' * 200 + "{}" + "}" * 200, "nested deeper"),
        ('{"items": ' * 90_000 + "{}" + "}" * 90_000, "nested deeper"),
        ('{"title": "' + "x" * 1_100_000 + '"}', "characters"),
        ('{"minimum": ' + "9" * 5000 + "}", "not valid JSON"),
    ],
    ids=lambda value: textwrap.shorten(str(value)[:200], 30),
)
def test_invalid_schema_is_rejected_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        read(text)


def test_invalid_reference_is_rejected_with_its_name() -> None:
    with pytest.raises(Rejected, match=r"reference 'a\.json'"):
        read({"$ref": "a.json"}, Reference("a.json", '{"type": 7}'))


def test_number_of_columns_is_limited_when_definitions_are_used_often() -> None:
    doubled = {
        f"d{n}": record(a={"$ref": f"#/definitions/d{n + 1}"}, b={"$ref": f"#/definitions/d{n + 1}"}) for n in range(29)
    }
    schema = {"definitions": {**doubled, "d29": STRING}, "$ref": "#/definitions/d0"}
    assert columns(schema).count(" string") <= 5_000


@pytest.mark.parametrize("kind", ["enum of mixed kinds", "anchors"])
def test_large_schema_is_parsed_in_linear_time(kind: str) -> None:
    """Parsing took minutes when its time was quadratic in the size."""
    if kind == "anchors":
        dialect = "https://json-schema.org/draft/2020-12/schema"
        schema = record(**{f"p{n}": {"$ref": f"#x{n}"} for n in range(5_000)})
        schema["$defs"] = {f"d{n}": {"$anchor": f"x{n}", **STRING} for n in range(5_000)}
    else:
        dialect = "http://json-schema.org/draft-04/schema#"
        schema = {"enum": [{"a": n} if n % 2 else str(n) for n in range(40_000)]}
    began_s = time.process_time()
    read({"$schema": dialect, **schema}).shape()
    assert time.process_time() - began_s < 5


def test_canonical_text_ignores_order_and_whitespace() -> None:
    assert read('{"type": "object",  "title":"é"}').canonical == '{"title":"é","type":"object"}'
    assert read('{"title":"é","type":"object"}').canonical == read('{"type":"object","title":"\\u00e9"}').canonical
