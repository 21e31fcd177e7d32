"""A table with a column of every type, and rows of it, for tests of files, engines and readers."""

import datetime as dt
import decimal
import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.types import PLAIN_COLUMNS, arrow_schema
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, primitive_of

STREAM_COLUMN = PLAIN_COLUMNS[-1]
PRIMITIVES = {
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "twofold": "double",
    "day": "date",
    "clock": "time",
    "local": "timestamp",
    "instant": "timestamptz",
    "text": "string",
    "unique": "uuid",
    "four": "fixed[4]",
    "raw": "binary",
    "price": "decimal(9, 2)",
    "sum": "decimal(18, 4)",
    "unsigned": "decimal(20, 0)",
    "huge": "decimal(38, 10)",
}


def _primitive(field_id: int, name: str, kind: str, required: bool = False) -> Column:
    found = primitive_of(kind)
    assert found is not None
    return Column(field_id, name, found, required)


def all_types() -> tuple[Column, ...]:
    """Returns columns of every primitive type, then of structs, lists and maps of them, nested."""
    flat = [_primitive(16 + number, name, kind) for number, (name, kind) in enumerate(PRIMITIVES.items())]
    inner = Fields((_primitive(61, "x", "int"), _primitive(62, "y", "string")))
    return (
        *flat,
        Column(60, "inner", inner),
        Column(70, "tags", ListColumn(_primitive(71, "element", "string"))),
        Column(80, "grid", ListColumn(Column(81, "element", ListColumn(_primitive(82, "element", "long"))))),
        Column(90, "counts", MapColumn(_primitive(91, "key", "string", True), _primitive(92, "value", "long"))),
        Column(
            100,
            "nested",
            MapColumn(
                _primitive(101, "key", "int", True),
                Column(102, "value", Fields((Column(103, "sizes", ListColumn(_primitive(104, "element", "double"))),))),
            ),
        ),
        STREAM_COLUMN,
    )


def row(number: int) -> dict[str, Any]:
    """Returns values of the columns of a row, with nulls at every level."""
    if number % 7 == 3:
        return {}
    sign = -1 if number % 2 else 1
    moment = dt.datetime(2020, 1, 1) + sign * dt.timedelta(days=number, microseconds=number)
    return {
        "flag": bool(number % 2),
        "small": sign * number,
        "large": sign * number * 2**40,
        "single": float("nan") if number % 5 == 4 else sign * number / 4,
        "twofold": float("inf") if number == 11 else sign * number / 3,
        "day": moment.date(),
        "clock": moment.time(),
        "local": moment,
        "instant": moment.replace(tzinfo=dt.UTC),
        "text": "grüße\U0001f600" * (number % 4) + str(number),
        "unique": uuid.UUID(int=number << 100 | number).bytes,
        "four": number.to_bytes(4, "big"),
        "raw": bytes([255]) * (number % 20),
        "price": decimal.Decimal(sign * number).scaleb(-2),
        "sum": decimal.Decimal(sign * number * 10**12).scaleb(-4),
        "unsigned": decimal.Decimal(2**64 - 1 - number),
        "huge": decimal.Decimal(sign * number * 10**20).scaleb(-10, decimal.Context(prec=60)),
        "inner": None if number % 3 == 0 else {"x": None if number % 3 == 1 else number, "y": f"y{number}"},
        "tags": None if number % 4 == 1 else ["a", None, str(number)][: number % 4],
        "grid": [[1, number], None, []][: number % 4],
        "counts": [(f"k{one}", None if one == 1 else one) for one in range(number % 3)],
        "nested": None if number % 5 == 0 else [(number, {"sizes": [0.5, None]}), (number + 1, None)],
    }


def batch(numbers: Sequence[int], columns: tuple[Column, ...] | None = None) -> Any:
    """Returns rows of partition 3 whose offsets are their numbers."""
    stream: list[dict[str, Any]] = [
        {
            **{"partition": 3, "offset": number, "timestamp": number * 1000, "timestamp_ms": None},
            **{"timestamp_type": 0, "key": b"key", "headers": [], "schema_id": 7, "value": None},
        }
        for number in numbers
    ]
    schema = arrow_schema(columns or all_types())
    made = {name: [row(number).get(name) for number in numbers] for name in schema.names[:-1]}
    arrays = [_array(made[field.name], field.type) for field in schema if field.name != "_stream"]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(stream, schema.field("_stream").type)], schema=schema)


def _array(values: list[Any], kind: Any) -> Any:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)
