"""A topic's table, written by us, as every engine reads it: the same rows, whatever is in them, also after Spark has
rewritten, deleted and expired under our hands.

The catalog and the files are those of running brokers; rows are compared column by column, as numbers and hex, because
the engines do not agree on what a time in the year 294,000 looks like.
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
from tests.integration import typed_engines
from tests.integration.engines import Rows, Spark, duckdb_of, pyiceberg_of, spark_of
from tests.integration.programs import cluster_of
from tests.unit.data.table.plain import LONG_MAX, LONG_MIN, Record, batch_of
from tests.unit.data.table.typed_rows import all_types

from lakestream.catalog.append import append
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.data_files import FileDescription, MovedRange, data_location
from lakestream.catalog.errors import TableAltered
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.opening import open_catalog
from lakestream.catalog.topic_layout import TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from lakestream.catalog.topic_tables import ensure_table
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import ParquetSettings, write_parquet
from lakestream.node import open_stores
from lakestream.settings import Settings
from lakestream.testing.brokers import Brokers

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
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


@asynccontextmanager
async def catalog_of(cluster: Brokers) -> AsyncIterator[Catalog]:
    """Beside the brokers, as the pipeline is."""
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
    """Plain ones, with an odd one here and there."""
    made = []
    for offset in range(start, end):
        timestamp, key, value, headers = (
            1_700_000_000_000 + offset,
            b"k%d" % (offset % 5),
            b"%d/%d" % (partition, offset),
            (),
        )
        if offset % 7 == 3:
            timestamp, key, value, headers = ODD[offset // 7 % len(ODD)]  # type: ignore[assignment]
        made.append(Record(offset, timestamp, 0, key, value, headers))
    return made


async def stored(catalog: Catalog, loaded: LoadedTable, partition: int, start: int, end: int) -> list[FileDescription]:
    """Files of these offsets, in the table's folder."""
    ids, batch = RandomIds(), batch_of(records(partition, start, end), "zstd", base_timestamp=0)
    rows = decode([Source.single("wal", batch, start)], partition)
    described = []
    location = loaded.metadata["location"]
    for body, file in write_parquet(rows, lambda offset: data_location(location, partition, offset, ids.new()), SMALL):
        await catalog.objects.create(catalog.locations.key_of(file.location), [body])
        described.append(file)
    return described


async def moved(catalog: Catalog, loaded: LoadedTable, count: int, *, empty: bool = False) -> LoadedTable:
    """So many more offsets of every partition."""
    offsets = next_offsets(loaded.metadata)
    ranges = [
        MovedRange(number, offsets.get(number, 0), offsets.get(number, 0) + count) for number in range(PARTITIONS)
    ]
    files = [] if empty else [file for one in ranges for file in await stored(catalog, loaded, *one)]
    return await append(catalog, loaded, files, ranges)


def grown(cluster: Brokers, topic: str, rounds: Sequence[int], *, empty_first: bool = False) -> LoadedTable:
    """The topic's table with so many more offsets in each partition, round by round."""

    async def grow() -> LoadedTable:
        async with catalog_of(cluster) as catalog:
            await catalog.start()
            loaded = await ensure_table(catalog, topic, f"{abs(hash(topic)):032x}", {})
            if empty_first:
                loaded = await moved(catalog, loaded, 5, empty=True)
            for count in rounds:
                loaded = await moved(catalog, loaded, count)
            return loaded

    return asyncio.run(grow())


# One shape for the rows of all engines


def expected(start: int, end: int) -> Rows:
    return sorted(_row(partition, one) for partition in range(PARTITIONS) for one in records(partition, start, end))


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
            one = {name: column[row] for name, column in others.items()}
            headers = [[each["key"], _hex(each["value"]), _hex(each["key_raw"])] for each in one["headers"]]
            kept = (one["partition"], one["offset"], micros[row], one["timestamp_ms"], one["timestamp_type"])
            rows.append((*kept, _hex(one["key"]), headers, _hex(value)))
    return sorted(rows)


def _hex(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()


def by_pyiceberg(cluster: Brokers, topic: str, location: str, where: str = "") -> Rows:
    scan = pyiceberg_of(cluster).load_table(f"default.{topic}").scan
    return _of_arrow((scan(row_filter=where) if where else scan()).to_arrow())


def by_polars(cluster: Brokers, topic: str, location: str, where: str = "") -> Rows:
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


def _by_duckdb(cluster: Brokers, source: str, where: str) -> Rows:
    with duckdb_of(cluster) as duck:
        found = duck.execute(f"SELECT {DUCKDB_COLUMNS} FROM {source} {f'WHERE {where}' if where else ''}").fetchall()
    return sorted(
        (
            *row[:5],
            _lower(row[5]),
            [[key, _lower(value), _lower(raw)] for key, value, raw in row[6]],
            _lower(row[7]),
        )
        for row in found
    )


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def by_duckdb(cluster: Brokers, topic: str, location: str, where: str = "") -> Rows:
    return _by_duckdb(cluster, f'lake."default".{topic}', where)


def by_duckdb_from_file(cluster: Brokers, topic: str, location: str, where: str = "") -> Rows:
    """Without the catalog: from the metadata file alone."""
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
def orders(cluster: Brokers) -> LoadedTable:
    """Enough commits that manifests were merged, files that were cut, and a range of which nothing became rows."""
    return grown(cluster, "orders", [3, 100, *[11] * 33], empty_first=True)


ORDERS_END = 5 + 3 + 100 + 33 * 11


@pytest.mark.parametrize("reader", READERS)
def test_all_rows(cluster: Brokers, orders: LoadedTable, reader: Callable[..., Rows]) -> None:
    assert reader(cluster, "orders", orders.metadata_location) == expected(5, ORDERS_END)


@pytest.mark.parametrize("reader", [by_pyiceberg, by_duckdb, by_duckdb_from_file])
def test_what_statistics_leave_out_is_not_there(
    cluster: Brokers, orders: LoadedTable, reader: Callable[..., Rows]
) -> None:
    def find(where: str) -> Rows:
        quoted = (
            where if reader is by_pyiceberg else where.replace("partition", '"partition"').replace("offset", '"offset"')
        )
        return reader(cluster, "orders", orders.metadata_location, quoted)

    whole = expected(5, ORDERS_END)
    for low, high in ((0, 8), (8, 9), (50, 130), (ORDERS_END - 1, 10**9)):
        wanted = [row for row in whole if row[0] == 1 and low <= row[1] < high]
        assert find(f"_stream.partition = 1 and _stream.offset >= {low} and _stream.offset < {high}") == wanted
    assert find("_stream.timestamp_ms is not null") == [row for row in whole if row[3] is not None]
    assert find("value is null") == [row for row in whole if row[7] is None]


def test_counts_and_sums(cluster: Brokers, orders: LoadedTable) -> None:
    """What engines answer from manifests alone."""
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


def test_an_empty_table(cluster: Brokers) -> None:
    for topic, empty_first in (("nothing", False), ("less", True)):
        loaded = grown(cluster, topic, [], empty_first=empty_first)
        for reader in READERS:
            if reader is by_duckdb_from_file and not empty_first:
                continue  # it does not read a table that has no snapshot
            assert reader(cluster, topic, loaded.metadata_location) == []


# Spark, whose Iceberg library is the reference; on the disk only, a start takes long


@pytest.fixture(scope="module")
def spark(cluster: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    if cluster.metadata != "sqlite":
        pytest.skip("once is enough")
    folder: Path = tmp_path_factory.mktemp("spark")
    with spark_of(cluster, folder) as session:
        yield session


def test_spark(cluster: Brokers, orders: LoadedTable, spark: Spark) -> None:
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


def test_foreign_hands(cluster: Brokers, spark: Spark) -> None:
    """Between our commits Spark does what people do to tables; we go on, and all agree on what is left."""
    table, called = "lake.default.hands", "CALL lake.system.{}(table => 'lake.default.hands'{})"
    grown(cluster, "hands", [40, 40])
    rewrite_all = ", options => map('rewrite-all', 'true')"
    spark.sql(called.format("rewrite_data_files", f", strategy => 'sort', sort_order => 'value'{rewrite_all}"))
    grown(cluster, "hands", [10])
    spark.sql(f"DELETE FROM {table} WHERE _stream.`offset` % 10 = 4")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    grown(cluster, "hands", [10])
    spark.sql(f"DELETE FROM {table} WHERE _stream.`offset` % 10 = 5")
    spark.sql(f"ALTER TABLE {table} ADD COLUMN note string")
    spark.sql(called.format("rewrite_manifests", ""))
    spark.sql(called.format("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1"))
    loaded = grown(cluster, "hands", [*[2] * 20])
    deleted = {offset for offset in range(100) if offset % 10 == 5 or (offset % 10 == 4 and offset < 90)}
    wanted = [row for row in expected(0, 140) if row[1] not in deleted]
    assert by_spark(spark, "hands") == wanted
    for reader in READERS:
        assert reader(cluster, "hands", loaded.metadata_location) == wanted, reader.__name__
    assert spark.sql(f"SELECT count(*) FROM {table} WHERE note IS NULL") == [[len(wanted)]]


def test_what_cannot_be_followed_is_told(cluster: Brokers, spark: Spark) -> None:
    grown(cluster, "altered", [5, 5])
    first = spark.sql("SELECT min_by(snapshot_id, committed_at) FROM lake.default.altered.snapshots")[0][0]
    called = "CALL lake.system.{}(table => 'lake.default.altered', snapshot_id => {})"
    spark.sql(called.format("rollback_to_snapshot", first))
    with pytest.raises(TableAltered, match="rolled the table back") as told:
        grown(cluster, "altered", [5])
    newest = str(told.value).partition("set_current_snapshot to ")[2].partition(")")[0]
    spark.sql(called.format("set_current_snapshot", newest))
    grown(cluster, "altered", [5])
    assert by_spark(spark, "altered") == expected(0, 15)
    spark.sql("ALTER TABLE lake.default.altered DROP COLUMN value")
    with pytest.raises(TableAltered, match="column value was dropped"):
        grown(cluster, "altered", [5])


def test_format_version_3(cluster: Brokers, spark: Spark) -> None:
    grown(cluster, "newer", [10])
    spark.sql("ALTER TABLE lake.default.newer SET TBLPROPERTIES ('format-version' = '3')")
    grown(cluster, "newer", [10, 10])
    spark.sql("DELETE FROM lake.default.newer WHERE _stream.`offset` = 12")
    grown(cluster, "newer", [10])
    assert by_spark(spark, "newer") == [row for row in expected(0, 40) if row[1] != 12]
    numbers = spark.sql("SELECT _row_id FROM lake.default.newer")
    assert len({number for (number,) in numbers}) == len(numbers) == 3 * 39


# Typed tables


@pytest.fixture(scope="module")
def kinds(cluster: Brokers) -> None:
    if cluster.metadata != "sqlite":
        pytest.skip("once is enough")

    async def make() -> None:
        async with catalog_of(cluster) as catalog:
            await typed_engines.made(catalog, "kinds", all_types())
            await typed_engines.made(catalog, "sparkable", typed_engines.NO_TIME)

    asyncio.run(make())


@pytest.mark.parametrize("reader", [typed_engines.by_pyiceberg, typed_engines.by_duckdb, typed_engines.by_polars])
def test_columns_of_every_type(cluster: Brokers, kinds: None, reader: Callable[..., list[list[Any]]]) -> None:
    assert reader(cluster, "kinds", all_types()) == typed_engines.expected(all_types())


@pytest.mark.parametrize("reader", [typed_engines.offsets_by_pyiceberg, typed_engines.offsets_by_duckdb])
def test_bounds_of_every_type_leave_out_nothing(
    cluster: Brokers, kinds: None, reader: Callable[..., list[list[int]]]
) -> None:
    assert reader(cluster, "kinds") == typed_engines.offsets_expected()


def test_spark_reads_every_type_that_it_has(cluster: Brokers, kinds: None, spark: Spark) -> None:
    columns = typed_engines.NO_TIME
    assert typed_engines.by_spark(spark, "sparkable", columns) == typed_engines.expected(columns)
    assert typed_engines.offsets_by_spark(spark, "sparkable") == typed_engines.offsets_expected()
    told = spark.sql("SELECT count(clock) FROM lake.default.kinds", fails=True)
    assert "time" in str(told), "if it reads a time of day now, it need not be left out any more"
