"""Commits of engines to a topic's table through a running broker: rejected and accepted ones."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog import Catalog as PyIceberg
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import BadRequestError
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.moved_records import SNAPSHOT_REFRESH_S, at_offsets, move, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import Spark, duckdb_of, pyiceberg_of, spark_of

from lakestream.catalog.catalog import open_catalog
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.offsets import NEXT_OFFSETS
from lakestream.cli.main import main
from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.server import HttpServer, HttpSettings
from lakestream.server.node import open_stores
from lakestream.testing.brokers import BrokerProcesses

COUNT = 60


async def no_metrics() -> bytes:
    return b""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def spark(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with spark_of(cluster, tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="module")
def unchecked_catalog(cluster: BrokerProcesses) -> Iterator[PyIceberg]:
    """A catalog over the same stores without the checks, as in older versions."""
    with catalog_without_checks(settings_of(cluster)) as uri:
        yield load_catalog("unchecked_catalog", type="rest", uri=uri)


def settings_of(cluster: BrokerProcesses) -> Settings:
    return Settings(data_dir=cluster[0]._log.parent / "data", metadata=cluster.metadata, storage=cluster.storage)


class NoChecks:
    """Accepts every commit."""

    async def check(self, before: Json | None, after: Json, topic_id: str) -> None: ...

    async def check_registered(self, metadata: Json) -> None: ...


@contextlib.contextmanager
def catalog_without_checks(settings: Settings) -> Iterator[str]:
    ports: list[int] = []
    started, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        clock, ids = SystemClock(), RandomIds()
        async with open_stores(settings, clock, ids) as stores:
            catalog = open_catalog(stores.metadata, stores.objects, settings.storage_url, clock, ids)
            server = HttpServer(HttpSettings())
            ports.append(server.bind("127.0.0.1", 0)[1])
            await server.serve(application(Health({}), no_metrics, IcebergRest(catalog, NoChecks(), {}, lambda: None)))
            started.set()
            await stop.wait()
            await server.stop()

    loops: list[asyncio.AbstractEventLoop] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(30)
    yield f"http://127.0.0.1:{ports[0]}"
    loops[0].call_soon_threadsafe(stop.set)
    thread.join(30)


class Topic:
    def __init__(self, cluster: BrokerProcesses, name: str, count: int = COUNT) -> None:
        self.cluster, self.name = cluster, name
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name)
        for start in range(0, count, 20):
            self.client.produce(name, sample_records(start, start + 20))
            move(cluster)
        self.expected = at_offsets(sample_records(0, count))

    def check_topic(self) -> None:
        """Asserts that a consumer reads all records, and that the pipeline moves new ones."""
        self.wait_for_refresh()
        assert self.client.read(self.name, "earliest", len(self.expected)) == self.expected
        end = (self.expected[-1].offset or 0) + 1
        self.client.produce(self.name, sample_records(end, end + 5))
        move(self.cluster)
        self.expected += at_offsets(sample_records(end, end + 5), end)
        self.wait_for_refresh()
        assert self.client.read(self.name, "earliest", len(self.expected)) == self.expected

    def wait_for_refresh(self) -> None:
        asyncio.run(asyncio.sleep(SNAPSHOT_REFRESH_S))

    def remove(self, is_removed: Callable[[int], bool]) -> None:
        self.expected = [record for record in self.expected if not is_removed(record.offset or 0)]

    def drop_not_null(self, unchecked_catalog: PyIceberg) -> None:
        with unchecked_catalog.load_table(f"default.{self.name}").update_schema(
            allow_incompatible_changes=True
        ) as schema:
            for name in ("_stream", "_stream.partition", "_stream.offset", "_stream.timestamp_type"):
                schema.make_column_optional(tuple(name.split(".")))


def insert(catalog: PyIceberg, name: str) -> None:
    """INSERT INTO … (value) VALUES ('x'), ('y')"""
    table = catalog.load_table(name)
    rows = table.scan(limit=2).to_arrow()
    kind = rows.schema.field("_stream").type
    table.append(pa.table({"value": pa.array([b"x", b"y"], pa.large_binary()), "_stream": pa.nulls(2, kind)}))


def allow_inserts(duck: duckdb.DuckDBPyConnection) -> None:
    """Configures DuckDB to ignore the table's sort order and properties that it does not support."""
    for name in ("unsafe_iceberg_ignore_sort_order", "ignore_row_group_size_for_partitioned_tables"):
        duck.execute(f"SET {name} = true")
    duck.execute("SET preserve_insertion_order = false")


def assert_rejected(duck: duckdb.DuckDBPyConnection, statement: str, *parts: str) -> None:
    with pytest.raises(duckdb.Error) as error:
        duck.execute(statement)
    for part in parts:
        assert part in str(error.value), error.value


def test_rows_without_offsets_of_pyiceberg_are_rejected(cluster: BrokerProcesses, unchecked_catalog: PyIceberg) -> None:
    topic = Topic(cluster, "by_pyiceberg")
    catalog, name = pyiceberg_of(cluster), "default.by_pyiceberg"
    change = catalog.load_table(name).update_schema(allow_incompatible_changes=True)
    change.make_column_optional("_stream")
    with pytest.raises(BadRequestError, match="column _stream was made optional"):
        change.commit()
    change = catalog.load_table(name).update_schema(allow_incompatible_changes=True)
    change.rename_column("_stream.key", "the_key")
    with pytest.raises(BadRequestError, match=r"column _stream\.key was renamed to the_key"):
        change.commit()
    topic.drop_not_null(unchecked_catalog)
    with pytest.raises(BadRequestError, match="2 rows have no offset"):
        insert(catalog, name)
    table = catalog.load_table(name)
    with pytest.raises(BadRequestError, match="which no file that the commit removes has"):
        table.append(table.scan().to_arrow())
    topic.check_topic()


def test_rows_without_offsets_of_duckdb_are_rejected(cluster: BrokerProcesses, unchecked_catalog: PyIceberg) -> None:
    topic = Topic(cluster, "by_duckdb")
    with duckdb_of(cluster) as duck:
        assert_rejected(
            duck, "ALTER TABLE lake.default.by_duckdb ALTER COLUMN _stream DROP NOT NULL", "was made optional"
        )
    topic.drop_not_null(unchecked_catalog)
    with pyiceberg_of(cluster).load_table("default.by_duckdb").update_spec() as spec:
        spec.remove_field("_stream_partition")  # DuckDB cannot write into partitions by a nested column
    with duckdb_of(cluster) as duck:
        allow_inserts(duck)
        assert_rejected(duck, "INSERT INTO lake.default.by_duckdb (value) VALUES ('x')", "1 rows have no offset")
        assert_rejected(
            duck,
            "INSERT INTO lake.default.by_duckdb SELECT * FROM lake.default.by_duckdb LIMIT 5",
            "which no file that the commit removes has",
        )
    topic.check_topic()


def test_rows_without_offsets_of_spark_are_rejected(
    cluster: BrokerProcesses, unchecked_catalog: PyIceberg, spark: Spark
) -> None:
    topic = Topic(cluster, "by_spark")
    table = "lake.default.by_spark"
    assert "was made optional" in spark.sql(f"ALTER TABLE {table} ALTER COLUMN _stream DROP NOT NULL", fails=True)
    assert "was dropped" in spark.sql(f"ALTER TABLE {table} DROP COLUMN _stream.headers", fails=True)
    assert "was renamed" in spark.sql(f"ALTER TABLE {table} RENAME COLUMN _stream TO s", fails=True)
    assert "was added" in spark.sql(f"ALTER TABLE {table} ADD COLUMN _stream.more string", fails=True)
    assert "Lakestream manages it" in spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('{NEXT_OFFSETS}' = '{{}}')", fails=True
    )
    assert "Lakestream manages it" in spark.sql(
        f"ALTER TABLE {table} UNSET TBLPROPERTIES ('{NEXT_OFFSETS}')", fails=True
    )
    topic.drop_not_null(unchecked_catalog)
    assert "rows have no offset" in spark.sql(f"INSERT INTO {table} (value) VALUES (X'00'), (X'01')", fails=True)
    again = f"INSERT INTO {table} SELECT * FROM {table} WHERE _stream.offset < 10"
    assert "which no file that the commit removes has" in spark.sql(again, fails=True)
    inserts = "WHEN NOT MATCHED THEN INSERT (value) VALUES (s.v)"
    merged = f"MERGE INTO {table} t USING (SELECT X'00' AS v) s ON t.value = s.v {inserts}"
    assert "rows have no offset" in spark.sql(merged, fails=True)
    topic.check_topic()


@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_updates_deletes_and_rewrites_of_spark_are_accepted(cluster: BrokerProcesses, spark: Spark, mode: str) -> None:
    topic = Topic(cluster, f"changed_{mode[:4]}")
    table, called = f"lake.default.{topic.name}", f"CALL lake.system.{{}}(table => 'default.{topic.name}'{{}})"
    modes = ", ".join(f"'write.{what}.mode' = '{mode}'" for what in ("delete", "update", "merge"))
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({modes})")
    spark.sql(f"DELETE FROM {table} WHERE _stream.offset % 10 = 3")
    topic.remove(lambda offset: offset % 10 == 3)
    spark.sql(f"UPDATE {table} SET value = X'6e6577' WHERE _stream.offset IN (5, 45)")
    source = "(SELECT 7L AS o UNION SELECT 27L UNION SELECT 48L)"
    when = "WHEN MATCHED AND s.o < 40 THEN UPDATE SET t.value = X'6e6577' WHEN MATCHED THEN DELETE"
    spark.sql(f"MERGE INTO {table} t USING {source} s ON t._stream.offset = s.o {when}")
    topic.remove(lambda offset: offset == 48)
    topic.expected = [
        replace(record, value=b"new") if record.offset in (5, 45, 7, 27) else record for record in topic.expected
    ]
    topic.check_topic()
    everything = ", options => map('rewrite-all', 'true')"
    spark.sql(called.format("rewrite_data_files", f", strategy => 'sort', sort_order => 'value'{everything}"))
    spark.sql(called.format("rewrite_manifests", ""))
    spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table} WHERE _stream.offset >= 20")
    topic.remove(lambda offset: offset < 20)
    topic.check_topic()


def test_branches_are_checked_when_main_gets_them(
    cluster: BrokerProcesses, unchecked_catalog: PyIceberg, spark: Spark
) -> None:
    topic = Topic(cluster, "branched")
    table = "lake.default.branched"
    topic.drop_not_null(unchecked_catalog)
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH bad")
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH good")
    spark.sql(f"INSERT INTO {table}.branch_bad (value) VALUES (X'00')")
    spark.sql(f"DELETE FROM {table}.branch_good WHERE _stream.offset < 3")
    forward = "CALL lake.system.fast_forward('default.branched', 'main', '{}')"
    assert "rows have no offset" in spark.sql(forward.format("bad"), fails=True)
    spark.sql(forward.format("good"))
    topic.remove(lambda offset: offset < 3)
    topic.check_topic()


def test_existing_rows_without_offsets_can_be_rewritten(
    cluster: BrokerProcesses, unchecked_catalog: PyIceberg, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = Topic(cluster, "damaged")
    topic.drop_not_null(unchecked_catalog)
    insert(unchecked_catalog, "default.damaged")
    topic.check_topic()
    capsys.readouterr()
    stores = ["--data-dir", str(settings_of(cluster).data_dir), "--storage", cluster.storage]
    assert main(["doctor", *stores, "--topic", "damaged"]) == 1
    findings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("BAD")]
    assert len(findings) == 1, findings
    assert ".parquet: 2 rows have no offset" in findings[0]
    pyiceberg_of(cluster).load_table("default.damaged").delete("_stream.offset is null")
    assert main(["doctor", *stores, "--topic", "damaged"]) == 0
    topic.check_topic()
