"""One copy of the records, read through Kafka, Iceberg and Delta.

A stock client produces them, the pipeline moves them, Spark changes the Iceberg table, and delta-rs, DuckDB and Spark
read the Delta table.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from deltalake import DeltaTable
from duckdb_extensions import import_extension  # type: ignore[import-untyped]
from pyiceberg.types import TimeType
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.moved_records import move, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines import delta_types, typed_engines
from tests.harness.engines.delta_tables import BOTH, delta_root, delta_rows, maintain_tables
from tests.harness.engines.engines import Rows, Spark, duckdb_of, pyiceberg_of, spark_of
from tests.harness.processes.dying_pipeline import DIED, SCRIPT

from lakestream.pipeline.maintenance.service import MaintenanceStats
from lakestream.testing.brokers import BrokerProcesses


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-oxia-s3", tmp_path_factory)


@pytest.fixture(scope="module")
def spark(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with spark_of(cluster, tmp_path_factory.mktemp("spark"), delta=True) as session:
        yield session


class Topic:
    """A topic and its tables."""

    def __init__(
        self, cluster: BrokerProcesses, name: str, configs: Mapping[str, str] | None = None, partitions: int = 2
    ) -> None:
        self.cluster, self.name = cluster, name
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name, partitions=partitions, configs={**BOTH, **(configs or {})})
        self.count = 0

    def produce_and_move(self, count: int) -> None:
        self.client.produce(self.name, sample_records(self.count, self.count + count))
        self.count += count
        move(self.cluster)

    def send(self, values: Sequence[Any]) -> None:
        self.client.produce(self.name, [Record(json.dumps(value).encode()) for value in values])
        move(self.cluster)

    def alter(self, setting: str, value: str) -> None:
        """Sets a topic config. Raises Kafka's error."""
        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)

    @property
    def root(self) -> str:
        return delta_root(self.cluster, self.name)

    def maintain(self) -> MaintenanceStats:
        return maintain_tables(self.cluster)

    def by_delta_rs(self, value: str = "value") -> Rows:
        rows = [(row["_stream"], row["value"]) for row in delta_rows(self.cluster, self.name, value)]
        return sorted((stream["partition"], stream["offset"], _hex(data)) for stream, data in rows)

    def by_duckdb(self, value: str = "value") -> Rows:
        with duckdb_of(self.cluster) as connection:
            import_extension("delta")
            connection.execute("LOAD delta")
            return self._duckdb(connection, f"delta_scan('{self.root}')", value)

    def iceberg(self, value: str = "value") -> Rows:
        with duckdb_of(self.cluster) as connection:
            return self._duckdb(connection, f"lake.default.{self.name}", value)

    def iceberg_query(self, columns: str) -> Rows:
        with duckdb_of(self.cluster) as connection:
            return sorted(connection.execute(f"SELECT {columns} FROM lake.default.{self.name}").fetchall())

    def delta_query(self, columns: str, where: str = "") -> Rows:
        with duckdb_of(self.cluster) as connection:
            import_extension("delta")
            connection.execute("LOAD delta")
            return sorted(connection.execute(f"SELECT {columns} FROM delta_scan('{self.root}') {where}").fetchall())

    def _duckdb(self, connection: duckdb.DuckDBPyConnection, table: str, value: str) -> Rows:
        query = f'SELECT _stream.partition, _stream."offset", "{value}" FROM {table}'
        return sorted(
            (partition, offset, _hex(data)) for partition, offset, data in connection.execute(query).fetchall()
        )

    def by_spark(self, spark: Spark, value: str = "value") -> Rows:
        path = self.root.removeprefix("file://")
        query = f"SELECT _stream.partition, _stream.offset, `{value}` FROM spark_catalog.delta.`{path}`"
        return spark.rows(query)


def _hex(value: Any) -> str | None:
    return None if value is None else bytes(value).hex()


def check(topic: Topic, spark: Spark, rows: int, value: str = "value") -> None:
    expected = topic.iceberg(value)
    assert len(expected) == rows
    assert topic.by_delta_rs(value) == expected
    assert topic.by_duckdb(value) == expected
    assert topic.by_spark(spark, value) == expected


@pytest.mark.timeout(300)
def test_every_reader_returns_the_rows_of_iceberg(cluster: BrokerProcesses, spark: Spark) -> None:
    topic = Topic(cluster, "both")
    table = "lake.default.both"
    for _ in range(3):
        topic.produce_and_move(100)
    check(topic, spark, 300)
    path = topic.root.removeprefix("file://")
    assert DeltaTable(path).version() == 2
    assert spark.sql(f"SELECT count(*) FROM spark_catalog.delta.`{path}` WHERE _stream.offset >= 1000") == [[0]]
    assert topic.maintain().files_merged > 0
    check(topic, spark, 300)

    spark.sql(f"DELETE FROM {table} WHERE _stream.offset < 10 AND _stream.partition = 0")  # copy-on-write
    topic.maintain()
    left = len(topic.iceberg())
    assert left < 300
    check(topic, spark, left)

    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    spark.sql(f"DELETE FROM {table} WHERE _stream.offset % 7 = 3")
    topic.maintain()
    assert spark.sql(f"SELECT count(*) FROM {table}.delete_files") == [[0]]
    check(topic, spark, len(topic.iceberg()))

    spark.sql(f"ALTER TABLE {table} ADD COLUMN country string FIRST")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN value TO payload")
    topic.produce_and_move(20)
    check(topic, spark, len(topic.iceberg("payload")), "payload")
    assert spark.sql(f"SELECT count(country) FROM spark_catalog.delta.`{path}`") == [[0]]


def test_vacuum_deletes_no_file(cluster: BrokerProcesses, spark: Spark) -> None:
    topic = Topic(cluster, "vacuumed")
    for _ in range(3):
        topic.produce_and_move(10)
    topic.maintain()
    path = topic.root.removeprefix("file://")
    files = sorted(Path(path).rglob("*.parquet"))
    spark.sql(f"VACUUM spark_catalog.delta.`{path}`")
    assert "DELTA_VACUUM_RETENTION_PERIOD_TOO_SHORT" in spark.sql(
        f"VACUUM spark_catalog.delta.`{path}` RETAIN 0 HOURS", fails=True
    )
    DeltaTable(path).vacuum(dry_run=False, full=True)
    assert sorted(Path(path).rglob("*.parquet")) == files
    topic.produce_and_move(10)
    check(topic, spark, 40)


def test_delta_table_in_a_bucket(bucket: BrokerProcesses) -> None:
    topic = Topic(bucket, "both")
    for _ in range(3):
        topic.produce_and_move(50)
    assert topic.maintain().files_merged > 0
    topic.produce_and_move(50)
    expected = topic.iceberg()
    assert len(expected) == 200
    assert topic.by_delta_rs() == expected
    assert topic.by_duckdb() == expected


def test_delta_table_has_typed_columns(cluster: BrokerProcesses) -> None:
    """Columns inferred from JSON, renamed, and added later are the same in both tables."""
    topic = Topic(cluster, "typed", {"lakestream.value.schema": "json"})
    values = [{"id": at, "name": f"n{at}", "price": at / 8, "tags": ["a", "b"], "by": {"who": "x"}} for at in range(20)]
    topic.send(values[:10])
    catalog = pyiceberg_of(cluster)
    with catalog.load_table("default.typed").update_schema() as update:
        update.rename_column("name", "title")
        update.rename_column("by.who", "author")
    topic.send([value | {"more": True} for value in values[10:]])
    columns = 'id, title, price, tags, "by".author, more'
    expected = topic.iceberg_query(columns)
    assert [row[:4] for row in expected] == [
        (value["id"], value["name"], value["price"], value["tags"]) for value in values
    ]
    assert topic.delta_query(columns) == expected
    assert topic.delta_query(f"{columns}", "WHERE title = 'n3' AND \"by\".author = 'x'") == [expected[3]]
    assert {row[-1] for row in expected} == {None, True}


@pytest.fixture(scope="module")
def everything(cluster: BrokerProcesses) -> Topic:
    """A topic with a field of every Avro type, in two files."""
    topic = Topic(cluster, "everything", {"lakestream.value.schema": "registry"}, partitions=1)
    values = delta_types.serialize_values(cluster, topic.name)
    for half in (values[: delta_types.ROWS // 2], values[delta_types.ROWS // 2 :]):
        topic.client.produce(topic.name, [Record(value, b"k") for value in half])
        move(cluster)
    return topic


def test_every_type_has_equal_values_in_both_tables(cluster: BrokerProcesses, everything: Topic) -> None:
    columns = delta_types.table_columns(cluster, everything.name)
    expected, root = delta_types.expected(columns), everything.root.removeprefix("file://")
    by_pyiceberg = delta_types.by_pyiceberg(cluster, everything.name, columns)
    assert delta_types.empty_as_null(by_pyiceberg) == delta_types.empty_as_null(expected)
    assert typed_engines.by_duckdb(cluster, everything.name, columns) == expected
    assert delta_types.by_delta_rs(root, columns) == expected
    assert delta_types.by_duckdb(cluster, root, columns) == expected
    offsets = delta_types.offsets_expected()
    assert delta_types.offsets_by_delta_rs(root) == offsets
    assert delta_types.offsets_by_duckdb(cluster, root) == offsets


def test_every_type_has_equal_values_in_spark(cluster: BrokerProcesses, everything: Topic, spark: Spark) -> None:
    columns = delta_types.table_columns(cluster, everything.name)
    expected, delta = delta_types.expected(columns), f"spark_catalog.delta.`{everything.root.removeprefix('file://')}`"
    assert typed_engines.by_spark_from(spark, f"lake.default.{everything.name}", columns) == expected
    assert typed_engines.by_spark_from(spark, delta, columns) == expected
    assert delta_types.offsets_by_spark(spark, delta) == delta_types.offsets_expected()


def test_setting_is_rejected_when_delta_does_not_support_a_column(cluster: BrokerProcesses) -> None:
    topic = Topic(cluster, "rejected", {"lakestream.table.formats": "iceberg"})
    topic.produce_and_move(10)
    with pyiceberg_of(cluster).load_table("default.rejected").update_schema() as update:
        update.add_column("at", TimeType())
    with pytest.raises(
        KafkaException, match="cannot have delta: column at has the type time, which Delta does not support"
    ):
        topic.alter("lakestream.table.formats", "iceberg,delta")


@pytest.mark.parametrize("when", ["before", "after"])
def test_delta_is_updated_by_the_next_driver_when_one_was_killed(cluster: BrokerProcesses, when: str) -> None:
    topic = Topic(cluster, f"died_{when}")
    topic.produce_and_move(10)
    topic.client.produce(topic.name, sample_records(10, 15))
    data_dir = str(cluster[0]._log.parent / "data")
    command = [sys.executable, SCRIPT, when, data_dir, cluster.metadata, cluster.storage]
    assert subprocess.run(command, env=dict(cluster.environment), timeout=100).returncode == DIED
    assert len(topic.by_delta_rs()) == (10 if when == "before" else 15)
    move(cluster)  # no record is left to move; the driver detects that Delta lags
    expected = topic.iceberg()
    assert len(expected) == 15
    assert topic.by_delta_rs() == expected
    assert topic.by_duckdb() == expected
    assert DeltaTable(topic.root.removeprefix("file://")).version() == 1, "the rows are committed once"
