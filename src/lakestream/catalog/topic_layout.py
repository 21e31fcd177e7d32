"""The columns of a topic's table, as Iceberg names and numbers them. Plain values: nothing heavy is imported here.

    value                        binary       what was produced; null: a tombstone
    _stream                      struct       everything else that a record is, last in the schema
      partition                  int
      offset                     long         sorted by it inside a file
      timestamp                  timestamptz  null where the milliseconds do not fit into microseconds of 64 bits
      timestamp_ms               long         they, there, and nowhere else
      timestamp_type             int          0: made by the client, 1: given at append
      key                        binary
      headers                    list         in order, duplicates kept; empty where a record has none
        key                      string       null where the bytes are not UTF-8
        value                    binary
        key_raw                  binary       they, there, and nowhere else
      schema_id                  int          which writer the row was typed by; null: its value is bytes
      value                      binary       what was produced, where typed columns do not give it back exactly

A typed table has the columns of its schemas in front of `_stream`, and no `value` of its own unless it was one of bytes
before (`schemas/columns.py`).

The numbers are those that every Iceberg library gives when it makes a table of this schema anew (level by level), so it
does not matter who makes it. They never change; columns to come get numbers from `FIRST_FREE_ID` on.
Code that works on columns is in `data/table/`; this module is for those who only name them.
"""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A field of the schema: a primitive, or a struct or a list of structs where `fields` says of what."""

    field_id: int
    name: str
    type: str
    required: bool = False
    fields: tuple["Column", ...] = ()
    element_id: int = 0

    def iceberg(self) -> dict[str, Any]:
        """As the field stands in Iceberg's JSON."""
        return {"id": self.field_id, "name": self.name, "required": self.required, "type": self._iceberg_type()}

    def _iceberg_type(self) -> Any:
        if self.type == "struct":
            return _struct(self.fields)
        if self.type == "list":
            # An element is a header, and there is no header that is not there.
            return {
                "type": "list",
                "element-id": self.element_id,
                "element": _struct(self.fields),
                "element-required": True,
            }
        return self.type


def _struct(fields: tuple[Column, ...]) -> dict[str, Any]:
    return {"type": "struct", "fields": [field.iceberg() for field in fields]}


VALUE: Final = "value"
STREAM: Final = "_stream"

_HEADER_FIELDS: Final = (
    Column(field_id=13, name="key", type="string"),
    Column(field_id=14, name="value", type="binary"),
    Column(field_id=15, name="key_raw", type="binary"),
)
_STREAM_FIELDS: Final = (
    Column(field_id=3, name="partition", type="int", required=True),
    Column(field_id=4, name="offset", type="long", required=True),
    Column(field_id=5, name="timestamp", type="timestamptz"),
    Column(field_id=6, name="timestamp_ms", type="long"),
    Column(field_id=7, name="timestamp_type", type="int", required=True),
    Column(field_id=8, name="key", type="binary"),
    Column(field_id=9, name="headers", type="list", fields=_HEADER_FIELDS, element_id=12),
    Column(field_id=10, name="schema_id", type="int"),
    Column(field_id=11, name="value", type="binary"),
)
COLUMNS: Final = (
    Column(field_id=1, name=VALUE, type="binary"),
    Column(field_id=2, name=STREAM, type="struct", required=True, fields=_STREAM_FIELDS),
)

VALUE_ID: Final = 1
PARTITION_ID: Final = 3
OFFSET_ID: Final = 4
"""What files are found by: the bounds of these two in the manifests."""
TIMESTAMP_ID: Final = 5
SCHEMA_ID: Final = 10
RAW_VALUE_ID: Final = 11
FIRST_FREE_ID: Final = 16

TIMESTAMP_MS_MAX: Final = (2**63 - 1) // 1000
TIMESTAMP_MS_MIN: Final = -TIMESTAMP_MS_MAX
"""Milliseconds from here to there are microseconds of 64 bits too: about 292,000 years around 1970."""


def iceberg_schema(schema_id: int = 0) -> dict[str, Any]:
    """The schema as Iceberg's metadata and REST catalogs spell it."""
    return {"schema-id": schema_id, **_struct(COLUMNS)}
