"""Conversion of values to columns; values that their columns do not restore keep their bytes."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.table.reference_codec import Record, batch_of
from tests.harness.typed.toy_format import SHAPES, tiny_codec, value

from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import write_parquet
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.errors import Rejected
from lakestream.schemas.column_evolution import BoundShape, evolve_columns, evolve_key_columns
from lakestream.schemas.columns import Column, ListColumn, primitive_of
from lakestream.schemas.types import Kind, Primitive
from lakestream.schemas.value_format import (
    ConversionErrors,
    ConversionSettings,
    FieldConversion,
    OnInvalid,
    SchemaMode,
    SchemasMissingError,
    ValuePart,
)
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

FIRST = (PLAIN_COLUMNS[-1],)
"""Columns of a table that has had a schema from the start."""


def writer(number: int, text: str, bindings: tuple[ColumnBinding | None, ...], **more: Any) -> WriterSchema:
    return WriterSchema(number, "TINY", text, schema_id=number, framed=True, columns=bindings, **more)


def table(*texts: str, columns: Sequence[Column] = FIRST) -> tuple[tuple[Column, ...], tuple[WriterSchema, ...]]:
    """Returns columns and writer schemas after the schemas 1, 2, … were added."""
    known: list[BoundShape] = []
    writers, next_id = [], 16
    for number, text in enumerate(texts, 1):
        made = evolve_columns(columns, SHAPES[text], next_id, known)
        columns, next_id = made.columns, made.next_id
        known.append(BoundShape(SHAPES[text], made.bindings))
        writers.append(writer(number, text, made.bindings))
    return tuple(columns), tuple(writers)


def rows(*values: bytes | None, keys: Sequence[bytes | None] = ()) -> Any:
    records = [
        Record(10 + place, 1000, 0, keys[place] if keys else b"k", one, ((b"h", b"v"),))
        for place, one in enumerate(values)
    ]
    (made,) = decode([BatchSource.single("x", batch_of(records), 10)], 3)
    return made


def converter(columns: Sequence[Column], writers: Sequence[WriterSchema], **more: Any) -> ValueConverter:
    return ValueConverter(
        columns, ConversionSettings(FieldConversion(SchemaMode.REGISTRY, tuple(writers)), **more), tiny_codec
    )


def listed(batch: Any, *paths: str) -> list[tuple[Any, ...]]:
    found = []
    for path in paths:
        top, _, inner = path.partition(".")
        column = batch.column(top)
        found.append((column.field(inner) if inner else column).to_pylist())
    return list(zip(*found, strict=True))


META = ("_stream.schema_id", "_stream.value")


def test_restored_values_have_columns_and_no_bytes() -> None:
    columns, writers = table("full")
    one = converter(columns, writers)
    (made,) = one.convert([rows(value(1, "a", 5, [0.5]), value(1, None, None, None), None)])
    assert made.schema.names == ["name", "age", "sizes", "_stream"]
    assert listed(made, "name", "age", "sizes", *META) == [
        ("a", 5, [0.5], 1, None),
        (None, None, None, 1, None),
        (None, None, None, None, None),
    ]
    assert listed(made, "_stream.offset", "_stream.key") == [(10, b"k"), (11, b"k"), (12, b"k")]
    assert made.column("_stream").field("headers").to_pylist()[0] == [{"key": "h", "value": b"v", "key_raw": None}]
    assert (one.stats.converted, one.stats.unconverted, one.stats.errors()) == (2, 0, ())


def test_values_keep_their_bytes_when_columns_do_not_restore_them() -> None:
    columns, writers = table("full")
    one = converter(columns, writers)
    spaced = value(1, "a", 5, None).replace(b",", b", ")
    bad, short, unframed = value(1, "a", "b", None), b"\0\0\0", b"{}"
    (made,) = one.convert([rows(spaced, bad, short, unframed, b"", value(1, "b", 1, []))])
    assert listed(made, "name", "age", *META) == [
        ("a", 5, 1, spaced),
        (None, None, 1, bad),
        (None, None, None, short),
        (None, None, None, unframed),
        (None, None, None, b""),
        ("b", 1, 1, None),
    ]
    assert (one.stats.converted, one.stats.unconverted) == (1, 5)
    assert one.stats.errors() == (
        ConversionErrors("does not start with a zero byte and a schema id", 0, 3, 12),
        ConversionErrors("it is no such list", 1, 1, 11),
    )


def test_batch_with_several_writer_schemas_is_converted() -> None:
    columns, writers = table("full", "named", "turned")
    (made,) = converter(columns, writers).convert(
        [
            rows(
                value(2, "x"),
                value(1, "a", 1, [1.5]),
                value(3, 7, "t"),
                None,
                b"?",
                value(1, "b", 2, None),
                value(2, "y"),
            )
        ]
    )
    assert listed(made, "name", "age", "sizes", *META) == [
        ("x", None, None, 2, None),
        ("a", 1, [1.5], 1, None),
        ("t", 7, None, 3, None),
        (None, None, None, None, None),
        (None, None, None, None, b"?"),
        ("b", 2, None, 1, None),
        ("y", None, None, 2, None),
    ]


def test_missing_schemas_are_requested() -> None:
    columns, writers = table("full")
    with pytest.raises(SchemasMissingError) as missing:
        list(
            converter(columns, writers).convert(
                [rows(value(1, "a", 1, None), value(9, "x"), value(4, "y"), value(9, "z"))]
            )
        )
    assert {(one.part, one.schema_id) for one in missing.value.schemas} == {(ValuePart.VALUE, 4), (ValuePart.VALUE, 9)}


def test_values_keep_bytes_when_schemas_cannot_be_requested() -> None:
    columns, writers = table("full")
    one = converter(columns, writers, requests_schemas=False)
    (made,) = one.convert([rows(value(1, "a", 1, None), value(9, "x"))])
    assert listed(made, "name", *META) == [("a", 1, None), (None, 9, value(9, "x"))]
    assert one.stats.errors() == (ConversionErrors("schema 9 is unknown", 9, 1, 11),)


def test_values_keep_bytes_with_the_reason_when_their_schema_is_unusable() -> None:
    columns, writers = table("full")
    unknown = WriterSchema(5, "", "the registry has no schema 5", schema_id=5, framed=True)
    broken = writer(6, "nonsense", ())
    one = converter(columns, (*writers, unknown, broken))
    (made,) = one.convert([rows(value(5, "a"), value(6, "b"))])
    assert listed(made, "name", *META) == [(None, 5, value(5, "a")), (None, 6, value(6, "b"))]
    assert {(one.reason, one.schema_id) for one in one.stats.errors()} == {
        ("the registry has no schema 5", 5),
        ("nonsense is no schema", 6),
    }


def test_values_keep_bytes_when_a_field_without_column_is_set() -> None:
    columns, writers = table("full")
    lacking = writer(1, "full", (writers[0].columns[0], None, writers[0].columns[2]))
    one = converter(columns, [lacking])
    (made,) = one.convert([rows(value(1, "a", 5, None), value(1, "b", None, [2.5]))])
    assert made.schema.names == ["name", "sizes", "_stream"]
    assert listed(made, "name", "sizes", *META) == [("a", None, 1, value(1, "a", 5, None)), ("b", [2.5], 1, None)]
    assert one.stats.errors() == (ConversionErrors("no column fits age", 1, 1, 10),)


def test_values_are_converted_into_widened_renamed_and_moved_columns() -> None:
    columns, writers = table("full")
    name, age, sizes, stream = columns
    long, double = primitive_of("long"), primitive_of("double")
    assert long is not None
    assert double is not None
    assert isinstance(sizes.type, ListColumn)
    wide = dataclasses.replace(sizes, type=ListColumn(dataclasses.replace(sizes.type.element, type=double)))
    altered = (wide, dataclasses.replace(age, type=long), dataclasses.replace(name, name="title"), stream)
    (made,) = converter(altered, writers).convert([rows(value(1, "a", 5, [0.5, 1.25]), None)])
    assert made.schema.names == ["sizes", "age", "title", "_stream"]
    assert made.schema.field("age").type == pa.int64()
    assert listed(made, "title", "age", "sizes", *META) == [("a", 5, [0.5, 1.25], 1, None), (None,) * 5]


def test_values_without_prefix_have_the_configured_schema() -> None:
    columns, (first,) = table("full")
    plain = WriterSchema(-1, "TINY", "full", columns=first.columns)
    one = ValueConverter(
        columns, ConversionSettings(FieldConversion(SchemaMode.LATEST, (first, plain), -1)), tiny_codec
    )
    (made,) = one.convert([rows(value(1, "a", 5, None)[5:], None, b"?")])
    assert listed(made, "name", "age", *META) == [("a", 5, -1, None), (None,) * 4, (None, None, -1, b"?")]
    lost = ValueConverter(columns, ConversionSettings(FieldConversion(SchemaMode.FIXED, (first,), 8)), tiny_codec)
    (made,) = lost.convert([rows(b"x", None)])
    assert listed(made, *META) == [(None, b"x"), (None, None)]
    assert lost.stats.errors()[0].reason == "the topic's schema is unknown"


def test_table_with_bytes_column_gets_columns_and_returns_to_bytes() -> None:
    columns, writers = table("full", columns=PLAIN_COLUMNS)
    (made,) = converter(columns, writers).convert([rows(value(1, "a", 5, None), b"?")])
    assert made.schema.names == ["value", "name", "age", "sizes", "_stream"]
    assert listed(made, "value", "name", *META) == [(None, "a", 1, None), (None, None, None, b"?")]
    (back,) = ValueConverter(
        columns, ConversionSettings(FieldConversion(SchemaMode.NONE, writers)), tiny_codec
    ).convert([rows(b"x", None)])
    assert listed(back, "value", "name", *META) == [(b"x", None, None, None), (None,) * 4]


def test_bytes_are_in_stream_value_when_the_table_has_no_bytes_column() -> None:
    columns, writers = table("full")
    (made,) = ValueConverter(
        columns, ConversionSettings(FieldConversion(SchemaMode.NONE, writers)), tiny_codec
    ).convert([rows(b"x", None)])
    assert listed(made, "name", *META) == [(None, None, b"x"), (None, None, None)]


def test_keys_have_columns_and_keep_their_bytes() -> None:
    columns, writers = table("full")
    made_key = evolve_key_columns(columns, SHAPES["turned"], 30)
    key_writer = writer(2, "turned", made_key.bindings)
    typing = ConversionSettings(
        FieldConversion(SchemaMode.REGISTRY, writers), FieldConversion(SchemaMode.REGISTRY, (key_writer,))
    )
    one = ValueConverter(made_key.columns, typing, tiny_codec)
    keys = [value(2, 1, "k"), b"raw", None]
    (made,) = one.convert([rows(value(1, "a", 5, None), None, value(1, "c", None, None), keys=keys)])
    assert made.schema.names == ["name", "age", "sizes", "_key", "_stream"]
    assert listed(made, "name", "_key", "_stream.key") == [
        ("a", {"age": 1, "name": "k"}, keys[0]),
        (None, None, b"raw"),
        ("c", None, None),
    ]
    assert [one.reason[:5] for one in one.stats.errors()] == ["key: "]
    with pytest.raises(SchemasMissingError) as missing:
        list(one.convert([rows(None, keys=[value(8, "x")])]))
    assert [(one.part, one.schema_id) for one in missing.value.schemas] == [(ValuePart.KEY, 8)]


def test_stop_raises_with_offset_and_reason() -> None:
    columns, writers = table("full")
    one = converter(columns, writers, on_invalid=OnInvalid.STOP)
    list(one.convert([rows(value(1, "a", 5, None))]))
    with pytest.raises(Rejected, match="offset 11 does not match the topic's schema: it is no such list"):
        list(one.convert([rows(value(1, "a", 5, None), value(1, 5))]))


def test_stop_does_not_raise_when_only_the_table_lacks_a_column() -> None:
    columns, (full,) = table("full")
    lacking = writer(1, "full", (full.columns[0], None, full.columns[2]))
    one = converter(columns, [lacking], on_invalid=OnInvalid.STOP)
    (made,) = one.convert([rows(value(1, "a", 5, None))])
    assert listed(made, "name", *META) == [("a", 1, value(1, "a", 5, None))]
    assert len(one.stats.errors()) == 1


def test_converted_rows_are_written_as_parquet() -> None:
    columns, writers = table("full", "named", columns=PLAIN_COLUMNS)
    one = converter(columns, writers)
    batches = list(one.convert([rows(value(2, "x"), value(1, "a", 1, [1.5]), None, b"?", value(1, "b", 2, None))]))
    (file,) = write_parquet(batches, str, None, one.columns)
    assert file.description.record_count == 5
    assert file.description.null_counts[1] == 5


def test_large_values_are_converted_alone_and_larger_ones_keep_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.typed.values_to_columns.BYTES_MAX", 100)
    monkeypatch.setattr("lakestream.data.typed.values_to_columns.VALUE_BYTES_MAX", 300)
    columns, writers = table("named")
    values = [value(1, "x" * size) for size in (10, 10, 200, 10, 400, 10, 10)]
    one = converter(columns, writers)
    made = list(one.convert([rows(*values)]))
    assert [len(batch) for batch in made] == [2, 1, 1, 1, 2]
    found = [row for batch in made for row in listed(batch, "name", *META)]
    assert found[:4] == [(("x" * size), 1, None) for size in (10, 10, 200, 10)]
    assert found[4] == (None, None, values[4])
    assert [(misfit.offset, misfit.count) for misfit in one.stats.errors()] == [(14, 1)]


def test_many_rows_are_converted_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakestream.data.typed.values_to_columns.ROWS_MAX", 3)
    columns, writers = table("full")
    values = [value(1, str(number), number, None) if number % 3 else b"?%d" % number for number in range(10)]
    made = list(converter(columns, writers).convert([rows(*values)]))
    assert [len(batch) for batch in made] == [3, 3, 3, 1]
    found = [row for batch in made for row in listed(batch, "age", "_stream.value", "_stream.offset")]
    assert found == [(n, None, 10 + n) if n % 3 else (None, b"?%d" % n, 10 + n) for n in range(10)]


def test_row_has_columns_of_its_own_writer_schema_only() -> None:
    """JSON is converted with one writer schema after the other; results of those that do not restore it are dropped."""
    text, style = (
        '{"type":"object","properties":{"a":{"type":"number"}}}',
        '{"comma":"%s","colon":"%s","escapes":[],"root":{}}',
    )
    columns = (Column(16, "a", Primitive(Kind.DOUBLE)), Column(17, "b", Primitive(Kind.DOUBLE)), PLAIN_COLUMNS[-1])
    writers = (
        WriterSchema(-1, "JSON", text, style=style % (", ", ": "), columns=(ColumnBinding(16),)),
        WriterSchema(-2, "JSON", text, style=style % (",", ":"), columns=(ColumnBinding(17),)),
    )
    (typed,) = ValueConverter(columns, ConversionSettings(FieldConversion(SchemaMode.JSON, writers))).convert(
        [rows(b'{"a": 1.5}', b'{"a":2.5}')]
    )
    assert listed(typed, "a", "b", "_stream.schema_id", "_stream.value") == [
        (1.5, None, -1, None),
        (None, 2.5, -2, None),
    ]
