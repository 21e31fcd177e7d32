"""The stream follows the table, whatever Spark does to it with Iceberg's own procedures."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.engines import Spark, spark_of
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import cluster_of
from tests.integration.test_history_clients import SEEN_S, at_offsets, made, move

from lakestream.testing.brokers import Brokers

COUNT = 3_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


@pytest.fixture(scope="module")
def spark(cluster: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with spark_of(cluster, tmp_path_factory.mktemp("spark")) as session:
        yield session


class Topic:
    """A topic whose records are in the table, in three files."""

    def __init__(self, cluster: Brokers, spark: Spark, name: str) -> None:
        self.cluster, self.spark, self.name = cluster, spark, name
        self.table = f"lake.default.{name}"
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name)
        self.left = at_offsets(made(0, COUNT))
        for start in range(0, COUNT, COUNT // 3):
            self.client.produce(name, made(start, start + COUNT // 3))
            move(cluster)

    def delete(self, condition: str, gone: Callable[[int], bool]) -> None:
        self.spark.sql(f"DELETE FROM {self.table} WHERE {condition}")
        self.left = [record for record in self.left if not gone(record.offset or 0)]

    def check(self) -> None:
        time.sleep(SEEN_S)
        assert self.read() == self.left

    def read(self) -> list[Record]:
        return self.client.read(self.name, 0, len(self.left))


def test_rewrites_and_deletes(cluster: Brokers, spark: Spark) -> None:
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


def test_changes_between_the_files_of_a_round_and_their_commit(cluster: Brokers, spark: Spark) -> None:
    """Files that no snapshot names yet are young, and what looks for orphans leaves young ones alone: by default
    those of three days, and Spark lets nobody ask for less than one. Other changes make the commit follow them."""
    topic = Topic(cluster, spark, "between")
    folder = Path(cluster.storage.removeprefix("file://"))
    removed: list[object] = []
    waiting: list[int] = []

    def orphans() -> None:
        named = {row[0].split("/data/")[1] for row in spark.sql(f"SELECT file_path FROM {topic.table}.files")}
        there = [str(path).split("/data/")[1] for path in folder.glob("tables/default/between-*/data/**/*.parquet")]
        waiting.append(len([name for name in there if name not in named]))
        removed.extend(spark.sql("CALL lake.system.remove_orphan_files(table => 'default.between')"))
        with pytest.raises(AssertionError, match="less than 24 hours"):
            spark.sql("CALL lake.system.remove_orphan_files(table => 'default.between', older_than => now())")

    changes: list[Callable[[], object]] = [
        orphans,
        lambda: spark.sql("CALL lake.system.rewrite_manifests('default.between')"),
        lambda: spark.sql(f"ALTER TABLE {topic.table} ADD COLUMN more string"),
    ]
    for number, change in enumerate(changes):
        start = COUNT + 100 * number
        topic.client.produce(topic.name, made(start, start + 100))
        topic.left += at_offsets(made(start, start + 100), start)
        move(cluster, lambda change=change: change())  # type: ignore[misc]
    assert (waiting, removed) == ([1], [])
    topic.check()
    counted = spark.sql(f"SELECT count(*), count(DISTINCT _stream.offset), count(more) FROM {topic.table}")
    assert counted == [[COUNT + 300, COUNT + 300, 0]]


@pytest.mark.parametrize("version", [2, 3])
def test_deletes_beside_the_files(cluster: Brokers, spark: Spark, version: int) -> None:
    """Merge-on-read: position delete files, and deletion vectors from format v3 on."""
    topic = Topic(cluster, spark, f"merged{version}")
    changed = f"'format-version' = '{version}', 'write.delete.mode' = 'merge-on-read'"
    spark.sql(f"ALTER TABLE {topic.table} SET TBLPROPERTIES ({changed})")
    topic.delete("_stream.offset % 11 = 5", lambda offset: offset % 11 == 5)
    (kinds,) = zip(*spark.sql(f"SELECT DISTINCT file_format FROM {topic.table}.delete_files"), strict=True)
    assert kinds == (("PUFFIN",) if version == 3 else ("PARQUET",))
    topic.check()
    topic.delete("_stream.offset % 13 = 5", lambda offset: offset % 13 == 5)
    topic.check()
    topic.client.produce(topic.name, made(COUNT, COUNT + 500))
    move(cluster)
    topic.left += at_offsets(made(COUNT, COUNT + 500), COUNT)
    topic.check()
    topic.delete("_stream.offset % 17 = 5", lambda offset: offset % 17 == 5)
    topic.check()
