"""Values of a few bytes whose lists have very many slots: an element of one to three bytes has all columns of its type.

A value is a record with the list `l`. Its elements have so many optional fields, of which these values have none.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from tests.harness.typed.toy_format import bytes_of

from lakestream.catalog.topic_table.columns import FIRST_FREE_ID
from lakestream.data.table.arrow.byte_spans import ByteSpans, numbers
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.typed.columns_to_values import TypedRows, columns_to_values
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.schemas.column_evolution import evolve_columns
from lakestream.schemas.columns import Column
from lakestream.schemas.model import Format
from lakestream.schemas.value_format import ConversionSettings, FieldConversion, OnInvalid, SchemaMode
from lakestream.schemas.writer_schema import WriterSchema
from lakestream.testing.batches import make_batch

FORMATS = tuple(Format)


def schema_of(kind: Format, fields: int) -> str:
    names = [f"f{number}" for number in range(fields)]
    match kind:
        case Format.AVRO:
            element: dict[str, Any] = {
                "type": "record",
                "name": "E",
                "fields": [{"name": name, "type": ["null", "long"]} for name in names],
            }
            items = {"type": "array", "items": ["null", element]}
            return json.dumps({"type": "record", "name": "R", "fields": [{"name": "l", "type": items}]})
        case Format.PROTOBUF:
            inner = " ".join(f"optional int64 {name} = {number};" for number, name in enumerate(names, 1))
            return f'syntax = "proto3"; message R {{ repeated E l = 1; }} message E {{ {inner} }}'
        case Format.JSON:
            element = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
            return json.dumps({"type": "object", "properties": {"l": {"type": "array", "items": element}}})


def value_of(kind: Format, items: int) -> bytes:
    match kind:
        case Format.AVRO:
            return _varint(2 * items) + b"\0" * items + (b"\0" if items else b"")
        case Format.PROTOBUF:
            return b"\x0a\0" * items
        case Format.JSON:
            return b'{"l": [' + b", ".join([b"{}"] * items) + b"]}"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def writer_of(kind: Format, fields: int, number: int = 1) -> WriterSchema:
    return WriterSchema(number, kind.value, schema_of(kind, fields), schema_id=number)


@dataclass(frozen=True)
class WideTable:
    """The table of values with one schema."""

    kind: Format
    writer: WriterSchema
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, kind: Format, fields: int) -> "WideTable":
        writer = writer_of(kind, fields)
        made = evolve_columns((PLAIN_COLUMNS[-1],), codec_of(writer).shape, FIRST_FREE_ID)
        return cls(kind, msgspec.structs.replace(writer, columns=made.bindings), made.columns)

    def converter(self, on_invalid: OnInvalid = OnInvalid.KEEP) -> ValueConverter:
        typed = FieldConversion(SchemaMode.FIXED, (self.writer,), self.writer.number)
        return ValueConverter(self.columns, ConversionSettings(typed, on_invalid=on_invalid))

    def restored(self, batch: Any) -> list[bytes | None]:
        """Returns the values that consumers get from converted rows."""
        stream = batch.column("_stream")
        by_id = {int(field.metadata[b"PARQUET:field_id"]): batch.column(at) for at, field in enumerate(batch.schema)}
        facts = (numbers(stream.field("offset"), -1), numbers(stream.field("schema_id"), 0))
        rows = TypedRows(by_id, *facts, ByteSpans.of(stream.field("value")), None)
        return bytes_of(columns_to_values(rows, {self.writer.number: self.writer}, "a file"))


def rows_of(values: Sequence[bytes | None]) -> Any:
    """Returns rows of these values, with offsets from 0 on."""
    (made,) = decode([BatchSource.single("a batch", make_batch(list(values)), 0)], 0)
    return made
