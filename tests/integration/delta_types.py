"""A topic of Avro values with a field of every type that Delta can say, and how each engine reads its two tables."""

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
from tests.integration import typed_engines
from tests.integration.engines import Spark, duckdb_of, pyiceberg_of, uri_of
from tests.integration.typed_engines import spelled

from lakestream.schemas.columns import Column, columns_of
from lakestream.testing.brokers import Brokers

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
    """As the serializer takes it. Now and then a record without one."""
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
        "counts": {f"k{one}": None if one == 1 else one for one in range(number % 3)},
        "inner": None if number % 3 == 0 else inner,
        "either": either,
        "maybe": None if number % 2 else number / 8,
        "many": [inner] * (number % 3),
        "named": {f"n{one}": inner for one in range(number % 3)},
    }


def serialized(cluster: Brokers, topic: str) -> list[bytes | None]:
    client = SchemaRegistryClient({"url": uri_of(cluster)})
    try:
        serializer = AvroSerializer(client, json.dumps(SCHEMA))
        where = SerializationContext(topic, MessageField.VALUE)
        made = [value(number) for number in range(ROWS)]
        return [None if one is None else serializer(one, where) for one in made]
    finally:
        client.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def columns(cluster: Brokers, topic: str) -> tuple[Column, ...]:
    return columns_of(pyiceberg_of(cluster).load_table(f"default.{topic}").schema().model_dump(by_alias=True))


# What rows should be


def expected(there: tuple[Column, ...]) -> list[list[Any]]:
    return [
        [number, *(spelled(row.get(one.name), one) for one in there[:-1])]
        for number in range(ROWS)
        for row in [_seen(value(number))]
    ]


def _seen(said: dict[str, Any] | None) -> dict[str, Any]:
    """A union is a struct with a field for each branch."""
    if said is None:
        return {}
    chosen = said["either"]
    kind = {int: "int", str: "string", dict: "Pair"}.get(type(chosen))
    either = {name: chosen if name == kind else None for name in ("int", "string", "Pair")}
    return {**said, "either": either if kind else None}


def _exactly(text: str, kind: str) -> str:
    """DataFusion takes a number with a fraction for a double."""
    return f"CAST('{text}' AS decimal({kind}))"


_HUGE: Final = "9999999999999999999999999999.9999999990"
CONDITIONS: Final[dict[str, Any]] = {
    "small > 20": lambda one: one["small"] > 20,
    "large < -4611686018427387920": lambda one: one["large"] < -4611686018427387920,
    "twofold >= 6": lambda one: one["twofold"] >= 6,
    f"price <= {_exactly('-99999.20', '9, 2')}": lambda one: one["price"] <= decimal.Decimal("-99999.20"),
    f"huge > {_exactly(_HUGE, '38, 10')}": lambda one: one["huge"] > decimal.Decimal(_HUGE),
    f"whole = {_exactly('18446744073709551605', '20, 0')}": lambda one: one["whole"] == 18446744073709551605,
    "day < DATE '2019-12-20'": lambda one: one["day"] < dt.date(2019, 12, 20),
    "text = '23'": lambda one: one["text"] == "23",
    "state = 'DONE'": lambda one: one["state"] == "DONE",
    "maybe IS NULL": lambda one: one["maybe"] is None,
    f'"inner".worth = {_exactly("0.022", "12, 3")}': lambda one: (
        one["inner"] is not None and one["inner"]["worth"] == decimal.Decimal("0.022")
    ),
}
"""Files are left out by what Delta's log says of them: what is in them must not be left out with them."""


def offsets_expected() -> list[list[int]]:
    rows = [value(number) for number in range(ROWS)]
    return [
        [number for number, one in enumerate(rows) if (condition.endswith("NULL") if one is None else is_true(one))]
        for condition, is_true in CONDITIONS.items()
    ]


def _in_sql(source: str) -> str:
    parts = (
        f'SELECT {number} AS condition, _stream."offset" AS place FROM {source} WHERE {condition}'
        for number, condition in enumerate(CONDITIONS)
    )
    return " UNION ALL ".join(parts)


def _listed(rows: Any) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in CONDITIONS]
    for number, offset in sorted(tuple(one) for one in rows):
        found[number].append(offset)
    return found


# The Iceberg table, as pyiceberg reads it: a list or map of structs that is null is empty there


def by_pyiceberg(cluster: Brokers, topic: str, there: tuple[Column, ...]) -> list[list[Any]]:
    return typed_engines.of_arrow(pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow(), there)


def empty_as_null(rows: list[list[Any]]) -> list[list[Any]]:
    return [[None if inner == [] else inner for inner in row] for row in rows]


# The Delta table, as engines read it: all rows, and what they find by conditions


def by_delta_rs(root: str, there: tuple[Column, ...]) -> list[list[Any]]:
    return typed_engines.of_arrow(DeltaTable(root).to_pyarrow_table(), there)


def offsets_by_delta_rs(root: str) -> list[list[int]]:
    found = QueryBuilder().register("t", DeltaTable(root)).execute(_in_sql("t")).read_all()
    return _listed([one.values() for batch in found.to_batches() for one in pa.record_batch(batch).to_pylist()])


def by_duckdb(cluster: Brokers, root: str, there: tuple[Column, ...]) -> list[list[Any]]:
    with duckdb_of(cluster) as connection:
        import_extension("delta")
        connection.execute("LOAD delta")
        return typed_engines.of_arrow(connection.execute(f"SELECT * FROM delta_scan('{root}')").to_arrow_table(), there)


def offsets_by_duckdb(cluster: Brokers, root: str) -> list[list[int]]:
    with duckdb_of(cluster) as connection:
        import_extension("delta")
        connection.execute("LOAD delta")
        return _listed(connection.execute(_in_sql(f"delta_scan('{root}')")).fetchall())


def offsets_by_spark(spark: Spark, source: str) -> list[list[int]]:
    return _listed(spark.sql(_in_sql(source).replace('"', "`")))
