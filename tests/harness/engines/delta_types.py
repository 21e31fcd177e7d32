"""Topic of Avro values with a field of every type that Delta supports, and reads of its tables by each engine."""

import datetime as dt
import decimal
import json
import uuid
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable, QueryBuilder
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from tests.harness.engines import typed_engines
from tests.harness.engines.engines import Spark, duckdb_of, pyiceberg_of, uri_of
from tests.harness.engines.typed_engines import normalized

from lakestream.schemas.columns import Column, columns_of
from lakestream.testing.brokers import BrokerProcesses

ROWS: Final = 24
DIGITS: Final = decimal.Context(prec=60)


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


_INNER: Final = {
    "type": "record",
    "name": "Inner",
    "fields": [
        {"name": "at", "type": ["null", _logical("long", "timestamp-micros")], "default": None},
        {"name": "who", "type": ["null", _logical("string", "uuid")], "default": None},
        {"name": "worth", "type": _logical("bytes", "decimal", precision=12, scale=3)},
    ],
}
_TYPES: Final[dict[str, Any]] = {
    "flag": "boolean",
    "small": "int",
    "large": "long",
    "single": "float",
    "twofold": "double",
    "price": _logical("bytes", "decimal", precision=9, scale=2),
    "huge": {"type": "fixed", "name": "Huge", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 10},
    "whole": _logical("bytes", "decimal", precision=20, scale=0),
    "day": _logical("int", "date"),
    "local": _logical("long", "local-timestamp-micros"),
    "instant": _logical("long", "timestamp-millis"),
    "unique": _logical("string", "uuid"),
    "four": {"type": "fixed", "name": "Four", "size": 4},
    "raw": "bytes",
    "text": "string",
    "state": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]},
    "tags": {"type": "array", "items": ["null", "string"]},
    "counts": {"type": "map", "values": ["null", "long"]},
    "inner": ["null", _INNER],
    "either": ["null", "int", "string", {"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "int"}]}],
    "maybe": ["null", "double"],
    "many": {"type": "array", "items": "Inner"},
    "named": {"type": "map", "values": "Inner"},
}
SCHEMA: Final = {
    "type": "record",
    "name": "Everything",
    "fields": [{"name": name, "type": kind} for name, kind in _TYPES.items()],
}


def value(number: int) -> dict[str, Any] | None:
    """Returns a value for the serializer; None for some records."""
    if number % 7 == 5:
        return None
    sign = -1 if number % 2 else 1
    moment = dt.datetime(2020, 1, 1) + sign * dt.timedelta(days=number, microseconds=number * 1001)
    inner = {
        "at": None if number % 4 == 1 else moment.replace(tzinfo=dt.UTC),
        "who": None if number % 4 == 2 else str(uuid.UUID(int=number)),
        "worth": decimal.Decimal(sign * number).scaleb(-3),
    }
    either = [None, number, f"e{number}", {"a": number}][number % 4]
    return {
        "flag": number % 3 == 0,
        "small": sign * number,
        "large": sign * (2**62 + number),
        "single": [float("nan"), float("-inf")][number % 2] if number % 11 == 7 else sign * number / 4,
        "twofold": float("inf") if number == 12 else sign * number / 3,
        "price": decimal.Decimal(sign * (9_999_900 + number)).scaleb(-2),
        "huge": decimal.Decimal(sign * (10**38 - 1 - number)).scaleb(-10, DIGITS),
        "whole": decimal.Decimal(2**64 - 1 - number),
        "day": moment.date(),
        "local": moment,
        "instant": moment.replace(microsecond=moment.microsecond // 1000 * 1000, tzinfo=dt.UTC),
        "unique": str(uuid.UUID(int=number << 100 | number)),
        "four": number.to_bytes(4, "big"),
        "raw": bytes([255, 0, number]) * (number % 5),
        "text": "grüße\U0001f600" * (number % 4) + str(number),
        "state": "DONE" if number % 2 else "NEW",
        "tags": ["a", None, str(number)][: number % 4],
        "counts": {f"k{key}": None if key == 1 else key for key in range(number % 3)},
        "inner": None if number % 3 == 0 else inner,
        "either": either,
        "maybe": None if number % 2 else number / 8,
        "many": [inner] * (number % 3),
        "named": {f"n{key}": inner for key in range(number % 3)},
    }


def serialize_values(cluster: BrokerProcesses, topic: str) -> list[bytes | None]:
    client = SchemaRegistryClient({"url": uri_of(cluster)})
    try:
        serializer = AvroSerializer(client, json.dumps(SCHEMA))
        context = SerializationContext(topic, MessageField.VALUE)
        values = [value(number) for number in range(ROWS)]
        return [None if record is None else serializer(record, context) for record in values]
    finally:
        client.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def table_columns(cluster: BrokerProcesses, topic: str) -> tuple[Column, ...]:
    return columns_of(pyiceberg_of(cluster).load_table(f"default.{topic}").schema().model_dump(by_alias=True))


# Expected rows


def expected(columns: tuple[Column, ...]) -> list[list[Any]]:
    return [
        [number, *(normalized(row.get(column.name), column) for column in columns[:-1])]
        for number in range(ROWS)
        for row in [_as_row(value(number))]
    ]


def _as_row(fields: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the row of a value: a union is a struct with a field for each branch."""
    if fields is None:
        return {}
    chosen = fields["either"]
    kind = {int: "int", str: "string", dict: "Pair"}.get(type(chosen))
    either = {name: chosen if name == kind else None for name in ("int", "string", "Pair")}
    return {**fields, "either": either if kind else None}


def _decimal(text: str, kind: str) -> str:
    """Returns a decimal literal: DataFusion parses a literal with a fraction as a double."""
    return f"CAST('{text}' AS decimal({kind}))"


_HUGE: Final = "9999999999999999999999999999.9999999990"
CONDITIONS: Final[dict[str, Any]] = {
    "small > 20": lambda fields: fields["small"] > 20,
    "large < -4611686018427387920": lambda fields: fields["large"] < -4611686018427387920,
    "twofold >= 6": lambda fields: fields["twofold"] >= 6,
    f"price <= {_decimal('-99999.20', '9, 2')}": lambda fields: fields["price"] <= decimal.Decimal("-99999.20"),
    f"huge > {_decimal(_HUGE, '38, 10')}": lambda fields: fields["huge"] > decimal.Decimal(_HUGE),
    f"whole = {_decimal('18446744073709551605', '20, 0')}": lambda fields: fields["whole"] == 18446744073709551605,
    "day < DATE '2019-12-20'": lambda fields: fields["day"] < dt.date(2019, 12, 20),
    "text = '23'": lambda fields: fields["text"] == "23",
    "state = 'DONE'": lambda fields: fields["state"] == "DONE",
    "maybe IS NULL": lambda fields: fields["maybe"] is None,
    f'"inner".worth = {_decimal("0.022", "12, 3")}': lambda fields: (
        fields["inner"] is not None and fields["inner"]["worth"] == decimal.Decimal("0.022")
    ),
}
"""Conditions for which engines skip files by the statistics in Delta's log; files with matching rows must be read."""


def offsets_expected() -> list[list[int]]:
    rows = [value(number) for number in range(ROWS)]
    return [
        [
            number
            for number, fields in enumerate(rows)
            if (condition.endswith("NULL") if fields is None else matches(fields))
        ]
        for condition, matches in CONDITIONS.items()
    ]


def _in_sql(source: str) -> str:
    parts = (
        f'SELECT {number} AS condition, _stream."offset" AS place FROM {source} WHERE {condition}'
        for number, condition in enumerate(CONDITIONS)
    )
    return " UNION ALL ".join(parts)


def _by_condition(rows: Any) -> list[list[int]]:
    offsets: list[list[int]] = [[] for _ in CONDITIONS]
    for number, offset in sorted(tuple(row) for row in rows):
        offsets[number].append(offset)
    return offsets


# Reads of the Iceberg table with pyiceberg, which returns a null list or map of structs as empty


def by_pyiceberg(cluster: BrokerProcesses, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    return typed_engines.of_arrow(pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow(), columns)


def empty_as_null(rows: list[list[Any]]) -> list[list[Any]]:
    return [[None if inner == [] else inner for inner in row] for row in rows]


# Reads of the Delta table by engines: all rows, and rows by conditions


def by_delta_rs(root: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    return typed_engines.of_arrow(DeltaTable(root).to_pyarrow_table(), columns)


def offsets_by_delta_rs(root: str) -> list[list[int]]:
    result = QueryBuilder().register("t", DeltaTable(root)).execute(_in_sql("t")).read_all()
    return _by_condition([row.values() for batch in result.to_batches() for row in pa.record_batch(batch).to_pylist()])


def by_duckdb(cluster: BrokerProcesses, root: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    with duckdb_of(cluster) as connection:
        import_extension("delta")
        connection.execute("LOAD delta")
        return typed_engines.of_arrow(
            connection.execute(f"SELECT * FROM delta_scan('{root}')").to_arrow_table(), columns
        )


def offsets_by_duckdb(cluster: BrokerProcesses, root: str) -> list[list[int]]:
    with duckdb_of(cluster) as connection:
        import_extension("delta")
        connection.execute("LOAD delta")
        return _by_condition(connection.execute(_in_sql(f"delta_scan('{root}')")).fetchall())


def offsets_by_spark(spark: Spark, source: str) -> list[list[int]]:
    return _by_condition(spark.sql(_in_sql(source).replace('"', "`")))
