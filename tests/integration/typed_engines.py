"""A table with a column of every type, as engines read it, in one spelling: what test_table_engines.py compares."""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable
from typing import Any

import polars
import pyarrow as pa  # type: ignore[import-untyped]
from tests.integration.engines import Spark, duckdb_of, pyiceberg_of
from tests.unit.data.table.typed_rows import all_types, batch, row

from lakestream.catalog.append import append
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import MovedRange, data_location
from lakestream.catalog.evolve import evolve
from lakestream.catalog.topic_tables import ensure_table
from lakestream.clock import RandomIds
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn
from lakestream.schemas.growing import Grown
from lakestream.schemas.shape import Kind, Primitive
from lakestream.testing.brokers import Brokers

ROWS = 60
NO_TIME = tuple(column for column in all_types() if column.name != "clock")
"""Spark has no type for a time of day, and does not open a table with one."""


async def made(catalog: Catalog, topic: str, columns: tuple[Column, ...]) -> LoadedTable:
    """The rows, in several files and row groups."""
    await catalog.start()
    loaded = await ensure_table(catalog, topic, f"{abs(hash(topic)):032x}", {"lakestream.value.schema": "registry"})
    loaded, _ = await evolve(catalog, loaded.table_id, lambda _, free: Grown(columns, (), (), 200))
    ids, location, files = RandomIds(), loaded.metadata["location"], []
    small = ParquetSettings(group_bytes_max=3_000, file_bytes_max=8_000)
    batches = [batch(range(start, start + 10), columns) for start in range(0, ROWS, 10)]
    for body, file in write_parquet(batches, lambda at: data_location(location, 3, at, ids.new()), small, columns):
        await catalog.objects.create(catalog.locations.key_of(file.location), [body])
        files.append(file)
    assert len(files) > 1
    return await append(catalog, loaded, files, [MovedRange(3, 0, ROWS)])


def expected(columns: tuple[Column, ...]) -> list[list[Any]]:
    typed = columns[:-1]
    return [[number, *(spelled(row(number).get(one.name), one) for one in typed)] for number in range(ROWS)]


def spelled(value: Any, column: Column) -> Any:
    """The same for all engines: numbers, texts and lists."""
    if value is None:
        return None
    match column.type:
        case Fields(fields):
            inner = value.values() if isinstance(value, dict) else value
            return [spelled(one, field) for one, field in zip(inner, fields, strict=True)]
        case ListColumn(element):
            return [spelled(one, element) for one in value]
        case MapColumn(key, item):
            pairs = [tuple(one.values()) if isinstance(one, dict) else tuple(one) for one in _pairs(value)]
            return sorted([spelled(one, key), spelled(other, item)] for one, other in pairs)
        case Primitive(kind):
            return _primitive(value, kind)
        case _:
            raise AssertionError(column)


def _pairs(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else value


def _primitive(value: Any, kind: Kind) -> Any:
    match kind:
        case Kind.FLOAT | Kind.DOUBLE:
            return repr(float(value))
        case Kind.DATE | Kind.TIME:
            return str(value)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return value if isinstance(value, int) else _micros(value)
        case Kind.UUID:
            return str(uuid.UUID(bytes=bytes(value)) if isinstance(value, bytes | bytearray) else uuid.UUID(str(value)))
        case Kind.FIXED | Kind.BINARY:
            return value if isinstance(value, str) else bytes(value).hex()
        case Kind.DECIMAL:
            return f"{decimal.Decimal(value).normalize(decimal.Context(prec=60)):f}"
        case _:
            return value


def _micros(moment: dt.datetime | str) -> int:
    """Spark's inside of others are texts."""
    moment = dt.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (moment.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def of_arrow(table: pa.Table, columns: tuple[Column, ...]) -> list[list[Any]]:
    rows = sorted(table.to_pylist(), key=lambda one: one["_stream"]["offset"])
    return [[one["_stream"]["offset"], *(spelled(one[column.name], column) for column in columns[:-1])] for one in rows]


def by_pyiceberg(cluster: Brokers, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    """It reads a map of structs that is null as one that is empty; there is no empty one among these."""
    rows = of_arrow(pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow(), columns)
    place = 1 + [column.name for column in columns].index("nested")
    return [[*one[:place], one[place] or None, *one[place + 1 :]] for one in rows]


def by_polars(cluster: Brokers, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    on_s3 = "AWS_ENDPOINT_URL" in cluster.environment
    options = {key.lower(): value for key, value in cluster.environment.items() if on_s3 and key.startswith("AWS_")}
    frame = polars.scan_iceberg(
        pyiceberg_of(cluster).load_table(f"default.{topic}"), storage_options=options or None
    ).collect()
    assert isinstance(frame, polars.DataFrame)
    return of_arrow(frame.to_arrow(), columns)


def by_duckdb(cluster: Brokers, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    with duckdb_of(cluster) as duck:
        return of_arrow(duck.execute(f'SELECT * FROM lake."default".{topic}').to_arrow_table(), columns)


def by_spark(spark: Spark, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    return by_spark_from(spark, f"lake.default.{topic}", columns)


def by_spark_from(spark: Spark, source: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    wanted = ", ".join(_in_spark(column) for column in columns[:-1])
    found = spark.sql(f"SELECT _stream.`offset`, {wanted} FROM {source}")
    return [
        [offset, *(spelled(value, column) for value, column in zip(values, columns[:-1], strict=True))]
        for offset, *values in sorted(found, key=lambda one: one[0])
    ]


def _in_spark(column: Column) -> str:
    """As something that JSON can carry."""
    match column.type:
        case MapColumn():
            return f"map_entries(`{column.name}`)"
        case Primitive(Kind.TIMESTAMP | Kind.TIMESTAMPTZ):
            return f"unix_micros(CAST(`{column.name}` AS timestamp))"
        case Primitive(Kind.DATE | Kind.DECIMAL):
            return f"CAST(`{column.name}` AS string)"
        case _:
            return f"`{column.name}`"


# What engines answer with the bounds in manifests and files

CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "small > 20": lambda one: one["small"] > 20,
    "text = '58'": lambda one: one["text"] == "58",
    "price < -0.30": lambda one: one["price"] < decimal.Decimal("-0.30"),
    "unsigned = 18446744073709551605": lambda one: one["unsigned"] == 18446744073709551605,
    "flag IS NULL": lambda one: False,
    "twofold > 15": lambda one: one["twofold"] > 15,
    "day < DATE '2019-12-01'": lambda one: one["day"] < dt.date(2019, 12, 1),
}


def offsets_expected() -> list[list[int]]:
    """Of each condition. Rows without anything have only nulls."""
    found = []
    for condition, is_true in CONDITIONS.items():
        rows = ((number, row(number)) for number in range(ROWS))
        found.append([number for number, one in rows if (is_true(one) if one else condition.endswith("NULL"))])
    return found


def in_sql(source: str) -> str:
    parts = (
        f'SELECT {number} AS condition, _stream."offset" AS place FROM {source} WHERE {condition}'
        for number, condition in enumerate(CONDITIONS)
    )
    return " UNION ALL ".join(parts)


def listed(rows: Any) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in CONDITIONS]
    for number, offset in sorted(tuple(one) for one in rows):
        found[number].append(offset)
    return found


def offsets_by_duckdb(cluster: Brokers, topic: str) -> list[list[int]]:
    with duckdb_of(cluster) as duck:
        return listed(duck.execute(in_sql(f'lake."default".{topic}')).fetchall())


def offsets_by_spark(spark: Spark, topic: str) -> list[list[int]]:
    return listed(spark.sql(in_sql(f"lake.default.{topic}").replace('"', "`")))


def offsets_by_pyiceberg(cluster: Brokers, topic: str) -> list[list[int]]:
    """It takes literals of other types as texts."""
    table = pyiceberg_of(cluster).load_table(f"default.{topic}")
    found = []
    for condition in CONDITIONS:
        spelled_so = re.sub(r"(-0\.30|\d{20})$", r"'\1'", condition).replace("DATE ", "")
        rows = table.scan(row_filter=spelled_so, selected_fields=("_stream",)).to_arrow().to_pylist()
        found.append(sorted(one["_stream"]["offset"] for one in rows))
    return found
