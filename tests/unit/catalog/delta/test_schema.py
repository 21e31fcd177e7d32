"""Columns in Delta's words, and what they are called in files."""

import json
from typing import Any

import pytest
from tests.unit.catalog.tables import field

from lakestream.catalog.delta.schema import delta_schema, names_said, unsayable
from lakestream.catalog.parquet_names import named_in_files, parquet_names
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_layout import iceberg_schema
from lakestream.schemas.columns import all_columns, columns_of


def schema(*fields: Json, number: int = 0) -> Json:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


def said(one: Json, *before: Json, mapped: bool = False) -> tuple[Json, Any]:
    made = delta_schema(one, parquet_names([*before, one]), mapped)
    return json.loads(made.text), made


def test_a_topics_table_is_plain() -> None:
    text, made = said(iceberg_schema())
    assert (made.features, made.settings) == ((), {})
    value, stream = text["fields"]
    assert value == {"name": "value", "type": "binary", "nullable": True, "metadata": {"lakestream.id": 1}}
    assert [one["type"] for one in stream["type"]["fields"][:5]] == ["integer", "long", "timestamp", "long", "integer"]
    assert "columnMapping" not in json.dumps(text), "readers refuse what is mapped without a word of it"
    assert unsayable(iceberg_schema()) == []


@pytest.mark.parametrize(
    ("iceberg", "delta"),
    [
        ("boolean", "boolean"),
        ("float", "float"),
        ("double", "double"),
        ("date", "date"),
        ("string", "string"),
        ("uuid", "binary"),
        ("fixed[16]", "binary"),
        ("decimal(20, 0)", "decimal(20,0)"),
        ("timestamp", "timestamp_ntz"),
        (
            {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": "long", "value-required": True},
            {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
        ),
        (
            {"type": "list", "element-id": 5, "element": "int", "element-required": True},
            {"type": "array", "elementType": "integer", "containsNull": True},
        ),
    ],
)
def test_types(iceberg: Any, delta: Any) -> None:
    text, made = said(schema(field(1, "a", iceberg)))
    assert text["fields"][0]["type"] == delta
    assert made.features == (("timestampNtz",) if iceberg == "timestamp" else ())


def test_what_cannot_be_said_is_named() -> None:
    inside = {"type": "list", "element-id": 9, "element": schema(field(10, "at", "time")), "element-required": False}
    wrong = schema(
        field(1, "t", "time"),
        field(2, "l", inside),
        field(3, "n", "timestamptz_ns"),
        field(4, "A"),
        field(5, "a"),
        field(6, "d", "int") | {"initial-default": 3},
    )
    assert unsayable(wrong) == [
        "column t is of type time, which Delta does not have",
        "column l.element.at is of type time, which Delta does not have",
        "column n is of type timestamptz_ns, which Delta does not have",
        "column d has a default for rows that are older than it, which Delta does not have",
        "columns A and a differ in case only, which is no difference to Delta",
    ]


def test_a_renamed_column_is_mapped() -> None:
    before, after = schema(field(1, "a"), field(2, "b")), schema(field(1, "c"), field(2, "b"), number=1)
    text, made = said(after, before)
    assert made.features == ("columnMapping",)
    assert made.settings == {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    assert [(one["name"], one["metadata"]["delta.columnMapping.physicalName"]) for one in text["fields"]] == [
        ("c", "a"),
        ("b", "b"),
    ]
    assert names_said(made.text) == {1: "a", 2: "b"}
    assert said(before, mapped=True)[1].features == ("columnMapping",), "once mapped, always"
    assert said(schema(field(1, "a b")))[1].features == ("columnMapping",)


def test_names_in_files_stay_and_are_given_once() -> None:
    inner = {"type": "struct", "fields": [field(11, "a"), field(12, "b")]}
    history = [
        schema(field(1, "a"), field(10, "s", inner)),
        schema(field(2, "A"), field(10, "t", inner), number=1),  # dropped, and another one of almost that name
        schema(field(2, "b"), field(3, "a"), field(10, "t", inner), number=2),
    ]
    names = parquet_names(history)
    assert names == {1: "a", 10: "s", 11: "a", 12: "b", 2: "A_2", 3: "a_3"}
    assert parquet_names(history[::-1]) == names, "by their numbers, however they are listed"
    assert parquet_names(history, {2: "x"})[2] == "x"
    columns = named_in_files(columns_of(history[-1]), names)
    assert [(one.field_id, one.name) for one in all_columns(columns)] == [
        (2, "A_2"),
        (3, "a_3"),
        (10, "s"),
        (11, "a"),
        (12, "b"),
    ]
