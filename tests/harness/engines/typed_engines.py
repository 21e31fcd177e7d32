"""Table with a column of every type, and the rows that each engine reads, normalized for test_table_engines.py."""

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable
from typing import Any

import polars
import pyarrow as pa  # type: ignore[import-untyped]
from tests.harness.engines.engines import Spark, duckdb_of, pyiceberg_of
from tests.harness.table.typed_rows import all_types, batch, row

from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.manifests.data_file import MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.operations.update_schema import evolve
from lakestream.clock import RandomIds
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.schemas.column_evolution import EvolvedColumns
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn
from lakestream.schemas.types import Kind, Primitive
from lakestream.testing.brokers import BrokerProcesses

ROWS = 60
NO_TIME = tuple(column for column in all_types() if column.name != "clock")
"""Spark has no type for a time of day, and cannot open a table with one."""


async def create_typed_table(catalog: Catalog, topic: str, columns: tuple[Column, ...]) -> LoadedTable:
    """Creates a table whose rows are in several files and row groups."""
    await catalog.start()
    loaded = await ensure_table(catalog, topic, f"{abs(hash(topic)):032x}", {"lakestream.value.schema": "registry"})
    loaded, _ = await evolve(catalog, loaded.table_id, lambda _, free: EvolvedColumns(columns, (), (), 200))
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
    return [[number, *(normalized(row(number).get(column.name), column) for column in typed)] for number in range(ROWS)]


def normalized(value: Any, column: Column) -> Any:
    """Converts a value to numbers, texts and lists, in the same way for all engines."""
    if value is None:
        return None
    match column.type:
        case Fields(fields):
            inner = value.values() if isinstance(value, dict) else value
            return [normalized(member, field) for member, field in zip(inner, fields, strict=True)]
        case ListColumn(element):
            return [normalized(member, element) for member in value]
        case MapColumn(key, item):
            pairs = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in _pairs(value)]
            return sorted([normalized(left, key), normalized(right, item)] for left, right in pairs)
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
    """Returns microseconds since 1970. Spark returns timestamps inside structs as text."""
    moment = dt.datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (moment.replace(tzinfo=None) - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)


def of_arrow(table: pa.Table, columns: tuple[Column, ...]) -> list[list[Any]]:
    rows = sorted(table.to_pylist(), key=lambda fields: fields["_stream"]["offset"])
    return [
        [fields["_stream"]["offset"], *(normalized(fields[column.name], column) for column in columns[:-1])]
        for fields in rows
    ]


def by_pyiceberg(cluster: BrokerProcesses, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    """Reads the rows with pyiceberg, which returns a null map of structs as empty. No row has an empty map."""
    rows = of_arrow(pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow(), columns)
    place = 1 + [column.name for column in columns].index("nested")
    return [[*values[:place], values[place] or None, *values[place + 1 :]] for values in rows]


def by_polars(cluster: BrokerProcesses, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    on_s3 = "AWS_ENDPOINT_URL" in cluster.environment
    options = {key.lower(): value for key, value in cluster.environment.items() if on_s3 and key.startswith("AWS_")}
    frame = polars.scan_iceberg(
        pyiceberg_of(cluster).load_table(f"default.{topic}"), storage_options=options or None
    ).collect()
    assert isinstance(frame, polars.DataFrame)
    return of_arrow(frame.to_arrow(), columns)


def by_duckdb(cluster: BrokerProcesses, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    with duckdb_of(cluster) as duck:
        return of_arrow(duck.execute(f'SELECT * FROM lake."default".{topic}').to_arrow_table(), columns)


def by_spark(spark: Spark, topic: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    return by_spark_from(spark, f"lake.default.{topic}", columns)


def by_spark_from(spark: Spark, source: str, columns: tuple[Column, ...]) -> list[list[Any]]:
    selected = ", ".join(_in_spark(column) for column in columns[:-1])
    rows = spark.sql(f"SELECT _stream.`offset`, {selected} FROM {source}")
    return [
        [offset, *(normalized(value, column) for value, column in zip(values, columns[:-1], strict=True))]
        for offset, *values in sorted(rows, key=lambda row: row[0])
    ]


def _in_spark(column: Column) -> str:
    """Returns the expression of the column, converted to a type that JSON supports."""
    match column.type:
        case MapColumn():
            return f"map_entries(`{column.name}`)"
        case Primitive(Kind.TIMESTAMP | Kind.TIMESTAMPTZ):
            return f"unix_micros(CAST(`{column.name}` AS timestamp))"
        case Primitive(Kind.DATE | Kind.DECIMAL):
            return f"CAST(`{column.name}` AS string)"
        case _:
            return f"`{column.name}`"


# Rows that engines select with the bounds in manifests and files

CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "small > 20": lambda fields: fields["small"] > 20,
    "text = '58'": lambda fields: fields["text"] == "58",
    "price < -0.30": lambda fields: fields["price"] < decimal.Decimal("-0.30"),
    "unsigned = 18446744073709551605": lambda fields: fields["unsigned"] == 18446744073709551605,
    "flag IS NULL": lambda fields: False,
    "twofold > 15": lambda fields: fields["twofold"] > 15,
    "day < DATE '2019-12-01'": lambda fields: fields["day"] < dt.date(2019, 12, 1),
}


def offsets_expected() -> list[list[int]]:
    """Returns the offsets of the rows of each condition. Empty rows contain only nulls."""
    offsets = []
    for condition, matches in CONDITIONS.items():
        rows = ((number, row(number)) for number in range(ROWS))
        offsets.append(
            [number for number, fields in rows if (matches(fields) if fields else condition.endswith("NULL"))]
        )
    return offsets


def in_sql(source: str) -> str:
    parts = (
        f'SELECT {number} AS condition, _stream."offset" AS place FROM {source} WHERE {condition}'
        for number, condition in enumerate(CONDITIONS)
    )
    return " UNION ALL ".join(parts)


def by_condition(rows: Any) -> list[list[int]]:
    offsets: list[list[int]] = [[] for _ in CONDITIONS]
    for number, offset in sorted(tuple(pair) for pair in rows):
        offsets[number].append(offset)
    return offsets


def offsets_by_duckdb(cluster: BrokerProcesses, topic: str) -> list[list[int]]:
    with duckdb_of(cluster) as duck:
        return by_condition(duck.execute(in_sql(f'lake."default".{topic}')).fetchall())


def offsets_by_spark(spark: Spark, topic: str) -> list[list[int]]:
    return by_condition(spark.sql(in_sql(f"lake.default.{topic}").replace('"', "`")))


def offsets_by_pyiceberg(cluster: BrokerProcesses, topic: str) -> list[list[int]]:
    """Reads the offsets with pyiceberg, which accepts these literals only as text."""
    table = pyiceberg_of(cluster).load_table(f"default.{topic}")
    offsets = []
    for condition in CONDITIONS:
        as_text = re.sub(r"(-0\.30|\d{20})$", r"'\1'", condition).replace("DATE ", "")
        rows = table.scan(row_filter=as_text, selected_fields=("_stream",)).to_arrow().to_pylist()
        offsets.append(sorted(fields["_stream"]["offset"] for fields in rows))
    return offsets
