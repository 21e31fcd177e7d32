"""Conversion of schemas to Delta, and names of columns in files."""

import json
from typing import Any

import pytest
from tests.harness.catalog.iceberg_tables import field

from lakestream.catalog.delta.schema import delta_schema, physical_names, unsupported_columns
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.catalog.topic_table.field_names import named_in_files, parquet_names
from lakestream.errors import Corrupt
from lakestream.schemas.columns import all_columns, columns_of


def schema(*fields: Json, number: int = 0) -> Json:
    return {"type": "struct", "schema-id": number, "fields": list(fields)}


def converted(one: Json, *before: Json, mapped: bool = False) -> tuple[Json, Any]:
    made = delta_schema(one, parquet_names([*before, one]), mapped)
    return json.loads(made.text), made


def test_topic_table_needs_no_column_mapping() -> None:
    text, made = converted(iceberg_schema())
    assert (made.features, made.settings) == ((), {})
    value, stream = text["fields"]
    assert value == {"name": "value", "type": "binary", "nullable": True, "metadata": {"lakestream.id": 1}}
    assert [one["type"] for one in stream["type"]["fields"][:5]] == ["integer", "long", "timestamp", "long", "integer"]
    assert "columnMapping" not in json.dumps(text), "readers reject mapped columns without the table feature"
    assert unsupported_columns(iceberg_schema()) == []


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
def test_types_are_converted(iceberg: Any, delta: Any) -> None:
    text, made = converted(schema(field(1, "a", iceberg)))
    assert text["fields"][0]["type"] == delta
    assert made.features == (("timestampNtz",) if iceberg == "timestamp" else ())


def test_unsupported_columns_are_listed() -> None:
    inside = {"type": "list", "element-id": 9, "element": schema(field(10, "at", "time")), "element-required": False}
    wrong = schema(
        field(1, "t", "time"),
        field(2, "l", inside),
        field(3, "n", "timestamptz_ns"),
        field(4, "A"),
        field(5, "a"),
        field(6, "d", "int") | {"initial-default": 3},
    )
    assert unsupported_columns(wrong) == [
        "column t has the type time, which Delta does not support",
        "column l.element.at has the type time, which Delta does not support",
        "column n has the type timestamptz_ns, which Delta does not support",
        "column d has an initial default, which Delta does not support",
        "columns A and a differ only in case, which Delta does not support",
    ]


def test_column_mapping_is_enabled_when_a_column_is_renamed() -> None:
    before, after = schema(field(1, "a"), field(2, "b")), schema(field(1, "c"), field(2, "b"), number=1)
    text, made = converted(after, before)
    assert made.features == ("columnMapping",)
    assert made.settings == {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    assert [(one["name"], one["metadata"]["delta.columnMapping.physicalName"]) for one in text["fields"]] == [
        ("c", "a"),
        ("b", "b"),
    ]
    assert physical_names(made.text) == {1: "a", 2: "b"}
    assert converted(before, mapped=True)[1].features == ("columnMapping",), "once mapped, always"
    assert converted(schema(field(1, "a b")))[1].features == ("columnMapping",)


def test_names_in_files_are_stable_and_unique() -> None:
    inner = {"type": "struct", "fields": [field(11, "a"), field(12, "b")]}
    history = [
        schema(field(1, "a"), field(10, "s", inner)),
        schema(field(2, "A"), field(10, "t", inner), number=1),  # dropped, and another one whose name differs in case
        schema(field(2, "b"), field(3, "a"), field(10, "t", inner), number=2),
    ]
    names = parquet_names(history)
    assert names == {1: "a", 10: "s", 11: "a", 12: "b", 2: "A_2", 3: "a_3"}
    assert parquet_names(history[::-1]) == names, "in the order of their ids, whatever the order of the list"
    assert parquet_names(history, {2: "x"})[2] == "x"
    columns = named_in_files(columns_of(history[-1]), names)
    assert [(one.field_id, one.name) for one in all_columns(columns)] == [
        (2, "A_2"),
        (3, "a_3"),
        (10, "s"),
        (11, "a"),
        (12, "b"),
    ]


@pytest.mark.parametrize(
    "text",
    ["{", '{"fields":5}', '{"fields":[1]}', '{"fields":[{"name":"a"}]}', "[" * 5_000, '{"fields":[{"metadata":1}]}'],
)
def test_names_are_not_read_when_the_schema_in_the_log_is_not_valid(text: str) -> None:
    with pytest.raises(Corrupt, match="the schema in the Delta log is not valid"):
        physical_names(text)
