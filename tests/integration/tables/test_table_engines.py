"""Engines read the same rows of a topic's table, also while Spark rewrites and deletes rows and snapshots expire.

The catalog and the files are those of running brokers. Rows are compared column by column, as numbers and hex, because
engines format timestamps in the year 294,000 differently.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.clients.programs import running_cluster
from tests.harness.engines import typed_engines
from tests.harness.engines.engines import Rows, Spark, duckdb_of, pyiceberg_of, spark_of
from tests.harness.table.reference_codec import LONG_MAX, LONG_MIN, Record, batch_of
from tests.harness.table.typed_rows import all_types

from lakestream.catalog.catalog import Catalog, LoadedTable, open_catalog
from lakestream.catalog.errors import IncompatibleTable
from lakestream.catalog.manifests.data_file import FileDescription, MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.catalog.topic_table.columns import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import ParquetSettings, write_parquet
from lakestream.server.node import open_stores
from lakestream.testing.brokers import BrokerProcesses

PARTITIONS = 3
SMALL = ParquetSettings(group_bytes_max=4_000, file_bytes_max=6_000)
ODD = (
    (-1, None, None, ()),
    (TIMESTAMP_MS_MAX, b"", b"", ((b"h", None), (b"h", b""), (b"\xff\xfe", b"\0"))),
    (TIMESTAMP_MS_MIN, b"\0", b"\xff" * 300, ((b"", b"v"),)),
    (LONG_MAX, b"k", None, ()),
    (LONG_MIN, None, b"v", ()),
    (0, "ключ".encode(), "значение".encode(), (("ö".encode(), "ü".encode()),)),
)


@pytest.fixture(scope="module", params=["one-sqlite", "one-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@asynccontextmanager
async def catalog_of(cluster: BrokerProcesses) -> AsyncIterator[Catalog]:
    """Opens the stores in a process without a broker, as the pipeline does."""
    folder = cluster[0]._log.parent / "data"
    settings = Settings(data_dir=folder, metadata=cluster.metadata, storage=cluster.storage)
    before = dict(os.environ)
    os.environ.update({name: text for name, text in cluster.environment.items() if name.startswith("AWS_")})
    try:
        clock, ids = SystemClock(), RandomIds()
        async with open_stores(settings, clock, ids) as stores:
            yield open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
    finally:
        os.environ.clear()
        os.environ.update(before)


def records(partition: int, start: int, end: int) -> list[Record]:
    """Returns plain records with some unusual ones."""
    generated = []
    for offset in range(start, end):
        timestamp, key, value, headers = (
            1_700_000_000_000 + offset,
            b"k%d" % (offset % 5),
            b"%d/%d" % (partition, offset),
            (),
        )
        if offset % 7 == 3:
            timestamp, key, value, headers = ODD[offset // 7 % len(ODD)]  # type: ignore[assignment]
        generated.append(Record(offset, timestamp, 0, key, value, headers))
    return generated


async def write_files(
    catalog: Catalog, loaded: LoadedTable, partition: int, start: int, end: int
) -> list[FileDescription]:
    """Writes files of these offsets to the table's folder."""
    ids, batch = RandomIds(), batch_of(records(partition, start, end), "zstd", base_timestamp=0)
    rows = decode([BatchSource.single("wal", batch, start)], partition)
    described = []
    location = loaded.metadata["location"]
    for body, file in write_parquet(rows, lambda offset: data_location(location, partition, offset, ids.new()), SMALL):
        await catalog.objects.create(catalog.locations.key_of(file.location), [body])
        described.append(file)
    return described


async def move(catalog: Catalog, loaded: LoadedTable, count: int, *, empty: bool = False) -> LoadedTable:
    """Moves `count` more offsets of every partition."""
    offsets = next_offsets(loaded.metadata)
    ranges = [
        MovedRange(number, offsets.get(number, 0), offsets.get(number, 0) + count) for number in range(PARTITIONS)
    ]
    files = (
        [] if empty else [file for moved_range in ranges for file in await write_files(catalog, loaded, *moved_range)]
    )
    return await append(catalog, loaded, files, ranges)


def moved_table(
    cluster: BrokerProcesses, topic: str, rounds: Sequence[int], *, empty_first: bool = False
) -> LoadedTable:
    """Returns the topic's table after micro-batches, each of which moves a number of offsets per partition."""

    async def move_rounds() -> LoadedTable:
        async with catalog_of(cluster) as catalog:
            await catalog.start()
            loaded = await ensure_table(catalog, topic, f"{abs(hash(topic)):032x}", {})
            if empty_first:
                loaded = await move(catalog, loaded, 5, empty=True)
            for count in rounds:
                loaded = await move(catalog, loaded, count)
            return loaded

    return asyncio.run(move_rounds())


# The same format of rows for all engines


def expected(start: int, end: int) -> Rows:
    return sorted(
        _row(partition, record) for partition in range(PARTITIONS) for record in records(partition, start, end)
    )


def _row(partition: int, record: Record) -> tuple[Any, ...]:
    fits = TIMESTAMP_MS_MIN <= record.timestamp <= TIMESTAMP_MS_MAX
    headers = []
    for key, value in record.headers:
        try:
            headers.append([key.decode(), _hex(value), None])
        except UnicodeDecodeError:
            headers.append([None, _hex(value), key.hex()])
    micros, millis = (record.timestamp * 1000, None) if fits else (None, record.timestamp)
    return partition, record.offset, micros, millis, 0, _hex(record.key), headers, _hex(record.value)


def _of_arrow(table: pa.Table) -> Rows:
    rows = []
    for batch in table.to_batches():
        stream = batch.column("_stream")
        fields = {stream.type.field(place).name: place for place in range(stream.type.num_fields)}
        micros = stream.field(fields["timestamp"]).cast(pa.int64()).to_pylist()
        others = {name: stream.field(place).to_pylist() for name, place in fields.items() if name != "timestamp"}
        for row, value in enumerate(batch.column("value").to_pylist()):
            other = {name: column[row] for name, column in others.items()}
            headers = [[header["key"], _hex(header["value"]), _hex(header["key_raw"])] for header in other["headers"]]
            position = (other["partition"], other["offset"], micros[row], other["timestamp_ms"])
            rows.append((*position, other["timestamp_type"], _hex(other["key"]), headers, _hex(value)))
    return sorted(rows)


def _hex(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def by_pyiceberg(cluster: BrokerProcesses, topic: str, location: str, where: str = "") -> Rows:
    scan = pyiceberg_of(cluster).load_table(f"default.{topic}").scan
    return _of_arrow((scan(row_filter=where) if where else scan()).to_arrow())


def by_polars(cluster: BrokerProcesses, topic: str, location: str, where: str = "") -> Rows:
    on_s3 = "AWS_ENDPOINT_URL" in cluster.environment
    options = {key.lower(): value for key, value in cluster.environment.items() if on_s3 and key.startswith("AWS_")}
    frame = polars.scan_iceberg(
        pyiceberg_of(cluster).load_table(f"default.{topic}"), storage_options=options or None
    ).collect()
    assert isinstance(frame, polars.DataFrame)
    return _of_arrow(frame.to_arrow())


DUCKDB_COLUMNS = (
    '_stream."partition", _stream."offset", epoch_us(_stream."timestamp"), _stream.timestamp_ms,'
    " _stream.timestamp_type, hex(_stream.key),"
    " list_transform(_stream.headers, h -> [h.key, hex(h.value), hex(h.key_raw)]), hex(value)"
)


def _by_duckdb(cluster: BrokerProcesses, source: str, where: str) -> Rows:
    with duckdb_of(cluster) as duck:
        rows = duck.execute(f"SELECT {DUCKDB_COLUMNS} FROM {source} {f'WHERE {where}' if where else ''}").fetchall()
    return sorted(
        (
            *row[:5],
            _lower(row[5]),
            [[key, _lower(value), _lower(raw)] for key, value, raw in row[6]],
            _lower(row[7]),
        )
        for row in rows
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def by_duckdb(cluster: BrokerProcesses, topic: str, location: str, where: str = "") -> Rows:
    return _by_duckdb(cluster, f'lake."default".{topic}', where)


def by_duckdb_from_file(cluster: BrokerProcesses, topic: str, location: str, where: str = "") -> Rows:
    """Reads without the catalog, from the metadata file only."""
    return _by_duckdb(cluster, f"iceberg_scan('{location}')", where)


SPARK_COLUMNS = (
    "_stream.`partition`, _stream.`offset`, unix_micros(_stream.`timestamp`), _stream.timestamp_ms,"
    " _stream.timestamp_type, _stream.key, _stream.headers, value"
)


def by_spark(spark: Spark, topic: str, where: str = "") -> Rows:
    clause = f"WHERE {where}" if where else ""
    return spark.rows(f"SELECT {SPARK_COLUMNS} FROM lake.default.{topic} {clause}")


READERS: list[Callable[..., Rows]] = [by_pyiceberg, by_polars, by_duckdb, by_duckdb_from_file]


@pytest.fixture(scope="module")
def orders(cluster: BrokerProcesses) -> LoadedTable:
    """A table with merged manifests, several files per move, and a range without rows."""
    return moved_table(cluster, "orders", [3, 100, *[11] * 33], empty_first=True)


ORDERS_END = 5 + 3 + 100 + 33 * 11


@pytest.mark.parametrize("reader", READERS)
def test_engine_reads_all_rows(cluster: BrokerProcesses, orders: LoadedTable, reader: Callable[..., Rows]) -> None:
    assert reader(cluster, "orders", orders.metadata_location) == expected(5, ORDERS_END)


@pytest.mark.parametrize("reader", [by_pyiceberg, by_duckdb, by_duckdb_from_file])
def test_filters_return_the_same_rows_as_a_full_scan(
    cluster: BrokerProcesses, orders: LoadedTable, reader: Callable[..., Rows]
) -> None:
    def rows_where(where: str) -> Rows:
        condition = (
            where if reader is by_pyiceberg else where.replace("partition", '"partition"').replace("offset", '"offset"')
        )
        return reader(cluster, "orders", orders.metadata_location, condition)

    whole = expected(5, ORDERS_END)
    for low, high in ((0, 8), (8, 9), (50, 130), (ORDERS_END - 1, 10**9)):
        expected_rows = [row for row in whole if row[0] == 1 and low <= row[1] < high]
        assert (
            rows_where(f"_stream.partition = 1 and _stream.offset >= {low} and _stream.offset < {high}")
            == expected_rows
        )
    assert rows_where("_stream.timestamp_ms is not null") == [row for row in whole if row[3] is not None]
    assert rows_where("value is null") == [row for row in whole if row[7] is None]


def test_engines_compute_the_same_counts_and_sums(cluster: BrokerProcesses, orders: LoadedTable) -> None:
    """Engines compute some of them from manifests only."""
    count, total = PARTITIONS * (ORDERS_END - 5), PARTITIONS * sum(range(5, ORDERS_END))
    table = pyiceberg_of(cluster).load_table("default.orders")
    assert table.scan().count() == count
    with duckdb_of(cluster) as duck:
        query = 'SELECT count(*), sum(_stream."offset") FROM lake."default".orders'
        assert duck.execute(query).fetchall() == [(count, total)]
    summary = orders.metadata["snapshots"][-1]["summary"]
    assert summary["total-records"] == str(count)
    assert summary["total-data-files"] == str(len(list(table.scan().plan_files())))
    assert len(table.current_snapshot().manifests(table.io)) <= 20  # type: ignore[union-attr]


def test_engines_read_an_empty_table(cluster: BrokerProcesses) -> None:
    for topic, empty_first in (("nothing", False), ("less", True)):
        loaded = moved_table(cluster, topic, [], empty_first=empty_first)
        for reader in READERS:
            if reader is by_duckdb_from_file and not empty_first:
                continue  # DuckDB cannot read a table without a snapshot
            assert reader(cluster, topic, loaded.metadata_location) == []


# Spark, whose Iceberg library is the reference; on disk only, because it starts slowly


@pytest.fixture(scope="module")
def spark(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    if cluster.metadata != "sqlite":
        pytest.skip("Spark runs only with the cluster on disk")
    folder: Path = tmp_path_factory.mktemp("spark")
    with spark_of(cluster, folder) as session:
        yield session


def test_spark_reads_all_rows(cluster: BrokerProcesses, orders: LoadedTable, spark: Spark) -> None:
    whole = expected(5, ORDERS_END)
    assert by_spark(spark, "orders") == whole
    assert by_spark(spark, "orders", "_stream.`partition` = 2 AND _stream.`offset` BETWEEN 8 AND 12") == [
        row for row in whole if row[0] == 2 and 8 <= row[1] <= 12
    ]
    assert spark.rows("SELECT count(*), sum(_stream.`offset`) FROM lake.default.orders") == [
        (len(whole), sum(row[1] for row in whole))
    ]
    assert spark.sql("SELECT count(*) FROM lake.default.orders.files")[0][0] > 100
    assert spark.rows("SELECT partition._stream_partition, record_count FROM lake.default.orders.partitions") == [
        (number, ORDERS_END - 5) for number in range(PARTITIONS)
    ]


def test_moves_continue_after_spark_changed_the_table(cluster: BrokerProcesses, spark: Spark) -> None:
    """Spark changes the table between commits of the pipeline; all engines read the same rows afterwards."""
    table, called = "lake.default.changed", "CALL lake.system.{}(table => 'lake.default.changed'{})"
    moved_table(cluster, "changed", [40, 40])
    rewrite_all = ", options => map('rewrite-all', 'true')"
    spark.sql(called.format("rewrite_data_files", f", strategy => 'sort', sort_order => 'value'{rewrite_all}"))
    moved_table(cluster, "changed", [10])
    spark.sql(f"DELETE FROM {table} WHERE _stream.`offset` % 10 = 4")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    moved_table(cluster, "changed", [10])
    spark.sql(f"DELETE FROM {table} WHERE _stream.`offset` % 10 = 5")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note string")
    spark.sql(called.format("rewrite_manifests", ""))
    spark.sql(called.format("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"))
    loaded = moved_table(cluster, "changed", [*[2] * 20])
    deleted = {offset for offset in range(100) if offset % 10 == 5 or (offset % 10 == 4 and offset < 90)}
    expected_rows = [row for row in expected(0, 140) if row[1] not in deleted]
    assert by_spark(spark, "changed") == expected_rows
    for reader in READERS:
        assert reader(cluster, "changed", loaded.metadata_location) == expected_rows, reader.__name__
    assert spark.sql(f"SELECT count(*) FROM {table} WHERE note IS NULL") == [[len(expected_rows)]]


def test_incompatible_changes_by_spark_are_reported(cluster: BrokerProcesses, spark: Spark) -> None:
    moved_table(cluster, "altered", [5, 5])
    first = spark.sql("SELECT min_by(snapshot_id, committed_at) FROM lake.default.altered.snapshots")[0][0]
    called = "CALL lake.system.{}(table => 'lake.default.altered', snapshot_id => {})"
    spark.sql(called.format("rollback_to_snapshot", first))
    with pytest.raises(IncompatibleTable, match="the table was rolled back") as error:
        moved_table(cluster, "altered", [5])
    newest = str(error.value).partition("set_current_snapshot to ")[2].partition(")")[0]
    spark.sql(called.format("set_current_snapshot", newest))
    moved_table(cluster, "altered", [5])
    assert by_spark(spark, "altered") == expected(0, 15)
    assert "column value was dropped" in spark.sql("ALTER TABLE lake.default.altered DROP COLUMN value", fails=True)
    moved_table(cluster, "altered", [5])


def test_engines_read_format_version_3(cluster: BrokerProcesses, spark: Spark) -> None:
    moved_table(cluster, "newer", [10])
    spark.sql("ALTER TABLE lake.default.newer SET TBLPROPERTIES ('format-version' = '3')")
    moved_table(cluster, "newer", [10, 10])
    spark.sql("DELETE FROM lake.default.newer WHERE _stream.`offset` = 12")
    moved_table(cluster, "newer", [10])
    assert by_spark(spark, "newer") == [row for row in expected(0, 40) if row[1] != 12]
    numbers = spark.sql("SELECT _row_id FROM lake.default.newer")
    assert len({number for (number,) in numbers}) == len(numbers) == 3 * 39


# Tables with converted values


@pytest.fixture(scope="module")
def kinds(cluster: BrokerProcesses) -> None:
    if cluster.metadata != "sqlite":
        pytest.skip("Spark runs only with the cluster on disk")

    async def create() -> None:
        async with catalog_of(cluster) as catalog:
            await typed_engines.create_typed_table(catalog, "kinds", all_types())
            await typed_engines.create_typed_table(catalog, "sparkable", typed_engines.NO_TIME)

    asyncio.run(create())


@pytest.mark.parametrize("reader", [typed_engines.by_pyiceberg, typed_engines.by_duckdb, typed_engines.by_polars])
def test_engine_reads_columns_of_every_type(
    cluster: BrokerProcesses, kinds: None, reader: Callable[..., list[list[Any]]]
) -> None:
    assert reader(cluster, "kinds", all_types()) == typed_engines.expected(all_types())


@pytest.mark.parametrize("reader", [typed_engines.offsets_by_pyiceberg, typed_engines.offsets_by_duckdb])
def test_filters_by_bounds_of_every_type_skip_no_row(
    cluster: BrokerProcesses, kinds: None, reader: Callable[..., list[list[int]]]
) -> None:
    assert reader(cluster, "kinds") == typed_engines.offsets_expected()


def test_spark_reads_every_type_that_it_has(cluster: BrokerProcesses, kinds: None, spark: Spark) -> None:
    columns = typed_engines.NO_TIME
    assert typed_engines.by_spark(spark, "sparkable", columns) == typed_engines.expected(columns)
    assert typed_engines.offsets_by_spark(spark, "sparkable") == typed_engines.offsets_expected()
    error = spark.sql("SELECT count(clock) FROM lake.default.kinds", fails=True)
    assert "time" in str(error), "if Spark reads a time of day now, remove NO_TIME"
