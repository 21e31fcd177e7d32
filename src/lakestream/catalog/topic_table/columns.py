"""The columns of a topic's table with their Iceberg names and field ids. Plain values, so that the import stays light.

    value                        binary       the produced value; null: a tombstone
    _stream                      struct       all other parts of a record, last in the schema
      partition                  int
      offset                     long         files are sorted by it
      timestamp                  timestamptz  null if the milliseconds do not fit into 64-bit microseconds
      timestamp_ms               long         the milliseconds of such a timestamp; null otherwise
      timestamp_type             int          0: CreateTime, 1: LogAppendTime
      key                        binary
      headers                    list         in order, with duplicates; empty if the record has none
        key                      string       null if the bytes are not UTF-8
        value                    binary
        key_raw                  binary       the bytes of such a key; null otherwise
      schema_id                  int          the writer schema of the row; null: its value is bytes
      value                      binary       the produced value, if typed columns do not restore it exactly

The table of a topic with schemas has the columns of the schemas in front of `_stream`. It has no top-level `value`
unless the topic had no schemas before (`schemas/columns.py`).

The field ids are those that every Iceberg library assigns to a new table of this schema (level by level), so any of
them can create the table. They never change. New columns get ids from `FIRST_FREE_ID` on.
Code that reads and writes columns is in `data/table/`.
"""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamColumn:
    """A field of the schema: a primitive, or a struct or a list of structs with `fields`."""

    field_id: int
    name: str
    type: str
    required: bool = False
    fields: tuple["StreamColumn", ...] = ()
    element_id: int = 0

    def iceberg(self) -> dict[str, Any]:
        """Returns the field in Iceberg's JSON."""
        return {"id": self.field_id, "name": self.name, "required": self.required, "type": self._iceberg_type()}

    def _iceberg_type(self) -> Any:
        if self.type == "struct":
            return _struct(self.fields)
        if self.type == "list":
            # An element is a header, which is never null.
            return {
                "type": "list",
                "element-id": self.element_id,
                "element": _struct(self.fields),
                "element-required": True,
            }
        return self.type


def _struct(fields: tuple[StreamColumn, ...]) -> dict[str, Any]:
    return {"type": "struct", "fields": [field.iceberg() for field in fields]}


VALUE: Final = "value"
STREAM: Final = "_stream"

_HEADER_FIELDS: Final = (
    StreamColumn(field_id=13, name="key", type="string"),
    StreamColumn(field_id=14, name="value", type="binary"),
    StreamColumn(field_id=15, name="key_raw", type="binary"),
)
_STREAM_FIELDS: Final = (
    StreamColumn(field_id=3, name="partition", type="int", required=True),
    StreamColumn(field_id=4, name="offset", type="long", required=True),
    StreamColumn(field_id=5, name="timestamp", type="timestamptz"),
    StreamColumn(field_id=6, name="timestamp_ms", type="long"),
    StreamColumn(field_id=7, name="timestamp_type", type="int", required=True),
    StreamColumn(field_id=8, name="key", type="binary"),
    StreamColumn(field_id=9, name="headers", type="list", fields=_HEADER_FIELDS, element_id=12),
    StreamColumn(field_id=10, name="schema_id", type="int"),
    StreamColumn(field_id=11, name="value", type="binary"),
)
COLUMNS: Final = (
    StreamColumn(field_id=1, name=VALUE, type="binary"),
    StreamColumn(field_id=2, name=STREAM, type="struct", required=True, fields=_STREAM_FIELDS),
)

VALUE_ID: Final = 1
PARTITION_ID: Final = 3
OFFSET_ID: Final = 4
"""Consumers find files by the bounds of this and PARTITION_ID in the manifests."""
TIMESTAMP_ID: Final = 5
SCHEMA_ID: Final = 10
RAW_VALUE_ID: Final = 11
FIRST_FREE_ID: Final = 16

TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN: Final = -TIMESTAMP_MS_MAX
"""Milliseconds in this range fit into 64-bit microseconds: about 292,000 years around 1970."""


def iceberg_schema(schema_id: int = 0) -> dict[str, Any]:
    """Returns the schema in Iceberg's JSON."""
    return {"schema-id": schema_id, **_struct(COLUMNS)}
