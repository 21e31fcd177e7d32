"""Conversion of JSON without a schema: shapes and styles are requested, and every value is restored."""

import json
from collections.abc import Sequence
from typing import Any

from tests.harness.table.reference_codec import Record, batch_of
from tests.harness.typed.toy_format import bytes_of

from lakestream.data.table.arrow.byte_spans import ByteSpans, numbers
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.typed.columns_to_values import TypedRows, columns_to_values
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.schemas.column_evolution import BoundShape, evolve_columns
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import (
    ConversionErrors,
    ConversionSettings,
    FieldConversion,
    SchemaMode,
    SchemasMissingError,
)
from lakestream.schemas.writer_schema import WriterSchema


class Table:
    """Table that adds columns for missing schemas, as a driver does."""

    def __init__(self) -> None:
        self.columns: tuple[Column, ...] = (PLAIN_COLUMNS[-1],)
        self.writers: list[WriterSchema] = []
        self.known: list[BoundShape] = []
        self.next_id = 16
        self.requests = 0

    def convert(self, values: Sequence[bytes | None]) -> tuple[ValueConverter, list[Any]]:
        records = [Record(at, 1000, 0, b"k", one) for at, one in enumerate(values)]
        while True:
            converter = ValueConverter(
                self.columns, ConversionSettings(FieldConversion(SchemaMode.JSON, tuple(self.writers)))
            )
            try:
                return converter, list(converter.convert(decode([BatchSource.single("x", batch_of(records), 0)], 0)))
            except SchemasMissingError as missing:
                self.requests += 1
                for one in missing.inferred:
                    made = evolve_columns(self.columns, one.shape, self.next_id, self.known)
                    self.columns, self.next_id = made.columns, made.next_id
                    self.known.append(BoundShape(one.shape, made.bindings))
                    number = -1 - len(self.writers)
                    self.writers.append(
                        WriterSchema(number, one.format, one.text, style=one.style, columns=made.bindings)
                    )

    def restored(self, batches: Sequence[Any]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for batch in batches:
            stream = batch.column("_stream")
            columns = {
                int(field.metadata[b"PARQUET:field_id"]): batch.column(place)
                for place, field in enumerate(batch.schema)
            }
            facts = (numbers(stream.field("offset"), -1), numbers(stream.field("schema_id"), 0))
            rows = TypedRows(columns, *facts, ByteSpans.of(stream.field("value")), None)
            found += bytes_of(columns_to_values(rows, {one.number: one for one in self.writers}, "table"))
        return found


def test_columns_are_inferred_and_values_restored() -> None:
    table = Table()
    values = [json.dumps({"id": at, "name": f"n{at}", "tags": ["a"] * (at % 3)}).encode() for at in range(100)]
    converter, batches = table.convert([*values, None])
    assert (converter.stats.converted, converter.stats.unconverted) == (100, 0)
    assert batches[0].schema.names == ["id", "name", "tags", "_stream"]
    assert batches[0].column("name").to_pylist() == [*(f"n{at}" for at in range(100)), None]
    assert table.restored(batches) == [*values, None]
    requests = table.requests
    table.convert(values)
    assert table.requests == requests, "there are no requests in steady state"


def test_new_fields_and_styles_are_inferred_and_invalid_json_keeps_bytes() -> None:
    table = Table()
    first = [json.dumps({"id": at, "name": f"n{at}"}).encode() for at in range(50)]
    table.convert(first)
    compact = [json.dumps({"id": at, "more": {"x": at / 2}}, separators=(",", ":")).encode() for at in range(50)]
    odd = [b"{", b"", b'{ "id":1,   "name":"spaced"}', None, b"\xff"]
    converter, batches = table.convert([*first, *compact, *odd])
    assert table.restored(batches) == [*first, *compact, *odd]
    (batch,) = batches
    assert {"id", "name", "more"} <= set(batch.schema.names)
    assert batch.column("more").to_pylist()[60] == {"x": 5.0}
    raw = batch.column("_stream").field("value").to_pylist()
    assert raw[:100] == [None] * 100
    assert raw[100:] == odd
    assert sum(one.count for one in converter.stats.errors()) == 3


def test_no_columns_are_inferred_when_no_value_is_json() -> None:
    table = Table()
    converter, batches = table.convert([b"garbage", None, b"\0\1"])
    assert batches[0].schema.names == ["_stream"]
    assert table.restored(batches) == [b"garbage", None, b"\0\1"]
    assert converter.stats.errors() == (
        ConversionErrors("invalid JSON, or JSON without a field that could have a column", 0, 2, 0),
    )
