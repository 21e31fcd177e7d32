"""Consumers read the table's current rows after Spark changed them with Iceberg's procedures."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.moved_records import SNAPSHOT_REFRESH_S, at_offsets, move, sample_records
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import Spark, spark_of

from lakestream.testing.brokers import BrokerProcesses

COUNT = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def spark(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with spark_of(cluster, tmp_path_factory.mktemp("spark")) as session:
        yield session


class Topic:
    """Creates a topic whose records are in the table, in three files."""

    def __init__(self, cluster: BrokerProcesses, spark: Spark, name: str) -> None:
        self.cluster, self.spark, self.name = cluster, spark, name
        self.table = f"lake.default.{name}"
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name)
        self.expected = at_offsets(sample_records(0, COUNT))
        for start in range(0, COUNT, COUNT // 3):
            self.client.produce(name, sample_records(start, start + COUNT // 3))
            move(cluster)

    def delete(self, condition: str, is_deleted: Callable[[int], bool]) -> None:
        self.spark.sql(f"DELETE FROM {self.table} WHERE {condition}")
        self.expected = [record for record in self.expected if not is_deleted(record.offset or 0)]

    def check(self) -> None:
        time.sleep(SNAPSHOT_REFRESH_S)
        assert self.read() == self.expected

    def read(self) -> list[Record]:
        return self.client.read(self.name, 0, len(self.expected))


def test_consumers_read_the_current_rows_after_rewrites_and_deletes(cluster: BrokerProcesses, spark: Spark) -> None:
    topic = Topic(cluster, spark, "rewritten")
    topic.check()
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'default.rewritten', options => map('rewrite-all', 'true'))"
    )
    topic.check()
    spark.sql(
        "CALL lake.system.rewrite_data_files(table => 'default.rewritten', strategy => 'sort',"
        " sort_order => '_stream.key DESC NULLS LAST, _stream.offset DESC',"
        " options => map('rewrite-all', 'true', 'target-file-size-bytes', '20000', 'max-file-size-bytes', '30000'))"
    )
    topic.check()
    topic.delete("_stream.offset % 7 = 3", lambda offset: offset % 7 == 3)  # copy-on-write
    topic.check()
    spark.sql("CALL lake.system.rewrite_manifests('default.rewritten')")
    spark.sql(f"ALTER TABLE {topic.table} ADD COLUMN more string FIRST")
    spark.sql(f"ALTER TABLE {topic.table} RENAME COLUMN value TO payload")
    topic.check()
    topic.delete("_stream.offset < 10", lambda offset: offset < 10)
    newest = spark.sql(f"SELECT max(committed_at) FROM {topic.table}.snapshots")[0][0]
    spark.sql(f"CALL lake.system.expire_snapshots('default.rewritten', TIMESTAMP '{newest}', 1)")
    topic.check()


def test_commit_succeeds_when_spark_changed_the_table_after_the_files_were_written(
    cluster: BrokerProcesses, spark: Spark
) -> None:
    """Young orphan files are kept: for three days by default, with a minimum of one day in Spark.

    After other changes the commit is rebased."""
    topic = Topic(cluster, spark, "between")
    folder = Path(cluster.storage.removeprefix("file://"))
    orphans_removed: list[object] = []
    uncommitted_files: list[int] = []

    def remove_orphans() -> None:
        committed = {row[0].split("/data/")[1] for row in spark.sql(f"SELECT file_path FROM {topic.table}.files")}
        stored = [str(path).split("/data/")[1] for path in folder.glob("tables/default/between-*/data/**/*.parquet")]
        uncommitted_files.append(len([name for name in stored if name not in committed]))
        orphans_removed.extend(spark.sql("CALL lake.system.remove_orphan_files(table => 'default.between')"))
        with pytest.raises(AssertionError, match="less than 24 hours"):
            spark.sql("CALL lake.system.remove_orphan_files(table => 'default.between', older_than => now())")

    changes: list[Callable[[], object]] = [
        remove_orphans,
        lambda: spark.sql("CALL lake.system.rewrite_manifests('default.between')"),
        lambda: spark.sql(f"ALTER TABLE {topic.table} ADD COLUMN more string"),
    ]
    for number, change in enumerate(changes):
        start = COUNT + 100 * number
        topic.client.produce(topic.name, sample_records(start, start + 100))
        topic.expected += at_offsets(sample_records(start, start + 100), start)
        move(cluster, lambda change=change: change())  # type: ignore[misc]
    assert (uncommitted_files, orphans_removed) == ([1], [])
    topic.check()
    counts = spark.sql(f"SELECT count(*), count(DISTINCT _stream.offset), count(more) FROM {topic.table}")
    assert counts == [[COUNT + 300, COUNT + 300, 0]]


@pytest.mark.parametrize("version", [2, 3])
def test_consumers_read_the_current_rows_after_merge_on_read_deletes(
    cluster: BrokerProcesses, spark: Spark, version: int
) -> None:
    """With position delete files, and deletion vectors in format version 3."""
    topic = Topic(cluster, spark, f"merged{version}")
    changed = f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(f"ALTER TABLE {topic.table} SET TBLPROPERTIES ({changed})")
    topic.delete("_stream.offset % 11 = 5", lambda offset: offset % 11 == 5)
    (kinds,) = zip(*spark.sql(f"SELECT DISTINCT file_format FROM {topic.table}.delete_files"), strict=True)
    assert kinds == (("PUFFIN",) if version == 3 else ("PARQUET",))
    topic.check()
    topic.delete("_stream.offset % 13 = 5", lambda offset: offset % 13 == 5)
    topic.check()
    topic.client.produce(topic.name, sample_records(COUNT, COUNT + 500))
    move(cluster)
    topic.expected += at_offsets(sample_records(COUNT, COUNT + 500), COUNT)
    topic.check()
    topic.delete("_stream.offset % 17 = 5", lambda offset: offset % 17 == 5)
    topic.check()
