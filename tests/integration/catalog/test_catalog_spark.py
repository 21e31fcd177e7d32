"""The REST catalog with Spark and Iceberg's Java runtime, the reference client of the specification."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import Spark, arrow_rows, duckdb_of, polars_rows, pyiceberg_of, spark_of

from lakestream.testing.brokers import BrokerProcesses

DAYS_S = 24 * 3600


@pytest.fixture(scope="module", params=["one-sqlite", "one-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def spark(cluster: BrokerProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spark]:
    with spark_of(cluster, tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def namespace(spark: Spark, request: pytest.FixtureRequest) -> str:
    name = str(request.function.__name__)
    spark.sql(f"CREATE NAMESPACE lake.{name}")
    return name


def test_spark_sql_changes_rows_schema_partitioning_and_branches(spark: Spark, namespace: str) -> None:
    table = f"lake.{namespace}.t"
    inner = "struct<a: int, b: array<string>, c: map<string, bigint>>"
    spark.sql(f"CREATE TABLE {table} (id bigint, s string, st {inner}) USING iceberg PARTITIONED BY (bucket(4, id))")
    one = "named_struct('a', 1, 'b', array('x'), 'c', map('k', 5L))"
    spark.sql(f"INSERT INTO {table} VALUES (1, 'a', {one}), (2, 'b', null)")
    spark.sql(f"INSERT INTO {table} VALUES (3, 'c', null)")
    assert spark.sql(f"SELECT id, s, st.c['k'] FROM {table} ORDER BY id") == [
        [1, "a", 5],
        [2, "b", None],
        [3, "c", None],
    ]
    spark.sql(f"ALTER TABLE {table} ADD COLUMN n int")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN s TO text")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN n TYPE bigint")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read', 'x' = 'y')")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('x')")
    spark.sql(f"DELETE FROM {table} WHERE id = 2")
    spark.sql(f"UPDATE {table} SET n = 7 WHERE id = 1")
    spark.sql(f"MERGE INTO {table} t USING (SELECT 3L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.n = 9")
    spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY id")
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD truncate(2, text)")
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD bucket(4, id)")
    spark.sql(f"INSERT INTO {table} VALUES (4, 'dd', null, 3)")
    assert spark.rows(f"SELECT id, text, n FROM {table}") == [(1, "a", 7), (3, "c", 9), (4, "dd", 3)]
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH b1")
    spark.sql(f"ALTER TABLE {table} CREATE TAG t1 RETAIN 5 DAYS")
    spark.sql(f"INSERT INTO {table}.branch_b1 VALUES (5, 'e', null, 0)")
    assert spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF 'b1'") == [[4]]
    assert spark.sql(f"SELECT count(*) FROM {table}") == [[3]]
    spark.sql(f"ALTER TABLE {table} DROP TAG t1")
    assert {row[0] for row in spark.sql(f"SELECT name FROM {table}.refs")} == {"main", "b1"}


def test_spark_creates_renames_and_drops_tables(spark: Spark, cluster: BrokerProcesses, namespace: str) -> None:
    spark.sql(f"CREATE TABLE lake.{namespace}.c USING iceberg AS SELECT id, id * 2 AS d FROM range(10)")
    assert "ALREADY_EXISTS" in spark.sql(f"CREATE TABLE lake.{namespace}.c (x int) USING iceberg", fails=True)
    spark.sql(f"CREATE OR REPLACE TABLE lake.{namespace}.c USING iceberg AS SELECT id FROM range(5)")
    assert spark.sql(f"SELECT sum(id) FROM lake.{namespace}.c") == [[10]]
    spark.sql(f"ALTER TABLE lake.{namespace}.c RENAME TO {namespace}.c2")
    assert spark.rows(f"SHOW TABLES IN lake.{namespace}") == [(namespace, "c2", False)]
    spark.sql(f"ALTER NAMESPACE lake.{namespace} SET PROPERTIES ('a' = 'b')")
    assert pyiceberg_of(cluster).load_namespace_properties(namespace)["a"] == "b"
    assert "not empty" in spark.sql(f"DROP NAMESPACE lake.{namespace}", fails=True)
    assert spark.sql(f"SHOW VIEWS IN lake.{namespace}") == []
    assert spark.sql(f"CREATE VIEW lake.{namespace}.v AS SELECT 1 AS one", fails=True)
    spark.sql(f"DROP TABLE lake.{namespace}.c2 PURGE")
    spark.sql(f"CREATE TABLE lake.{namespace}.`we.ird/ü +%` (id int) USING iceberg")
    spark.sql(f"INSERT INTO lake.{namespace}.`we.ird/ü +%` VALUES (1)")
    assert spark.sql(f"SELECT * FROM lake.{namespace}.`we.ird/ü +%`") == [[1]]
    spark.sql(f"DROP TABLE lake.{namespace}.`we.ird/ü +%`")
    spark.sql(f"DROP NAMESPACE lake.{namespace}")


def test_spark_uses_format_versions_1_to_3(spark: Spark, namespace: str) -> None:
    table = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, v variant) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    spark.sql(f"INSERT INTO {table} SELECT id, parse_json('{{\"a\": 1}}') FROM range(3)")
    spark.sql(f"INSERT INTO {table} SELECT 10, null")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    assert spark.rows(f"SELECT id, _row_id FROM {table}") == [(0, 0), (2, 2), (10, 3)]
    spark.sql(f"CREATE TABLE lake.{namespace}.old (id bigint) USING iceberg TBLPROPERTIES ('format-version' = '1')")
    spark.sql(f"INSERT INTO lake.{namespace}.old VALUES (1)")
    spark.sql(f"ALTER TABLE lake.{namespace}.old SET TBLPROPERTIES ('format-version' = '2')")
    spark.sql(f"INSERT INTO lake.{namespace}.old VALUES (2)")
    assert spark.rows(f"SELECT * FROM lake.{namespace}.old") == [(1,), (2,)]


def test_procedures_of_iceberg_keep_the_rows(spark: Spark, cluster: BrokerProcesses, namespace: str) -> None:
    table = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {table} (id bigint, text string) USING iceberg")
    for start in range(0, 40, 10):
        spark.sql(f"INSERT INTO {table} SELECT id, cast(100 - id AS string) FROM range({start}, {start + 10})")
    first = spark.sql(f"SELECT min_by(snapshot_id, committed_at) FROM {table}.snapshots")[0][0]
    spark.sql(f"DELETE FROM {table} WHERE id = 5")
    expected = spark.rows(f"SELECT * FROM {table}")
    called = f"CALL lake.system.{{}}(table => 'lake.{namespace}.t'"
    options = "map('rewrite-all', 'true')"
    spark.sql(f"{called.format('rewrite_data_files')}, strategy => 'sort', sort_order => 'text', options => {options})")
    spark.sql(f"{called.format('rewrite_manifests')})")
    assert spark.rows(f"SELECT * FROM {table}") == expected
    spark.sql(f"{called.format('rollback_to_snapshot')}, snapshot_id => {first})")
    assert spark.sql(f"SELECT count(*) FROM {table}") == [[10]]
    latest = spark.sql(f"SELECT max_by(snapshot_id, committed_at) FROM {table}.snapshots")[0][0]
    spark.sql(f"{called.format('set_current_snapshot')}, snapshot_id => {latest})")
    expired = f"{called.format('expire_snapshots')}, older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    spark.sql(expired)
    assert spark.rows(f"SELECT * FROM {table}") == expected
    assert spark.sql(f"SELECT count(*) FROM {table}.snapshots") == [[1]]
    assert len(spark.sql(f"{called.format('compute_table_stats')})")) == 1
    location = pyiceberg_of(cluster).load_table(f"{namespace}.t").location()
    orphan = _age_files(location, cluster)
    removed = spark.sql(f"{called.format('remove_orphan_files')}, prefix_listing => true)")
    assert any(orphan in row[0] for row in removed), removed
    assert spark.rows(f"SELECT * FROM {table}") == expected
    assert len(pyiceberg_of(cluster).load_table(f"{namespace}.t").scan().to_arrow()) == len(expected)


def _age_files(location: str, cluster: BrokerProcesses) -> str:
    """Makes all files of a table four days old, and adds an orphan."""
    parts = urlsplit(location)
    root = Path(parts.path)
    if parts.scheme == "s3":  # the server keeps objects as files in this folder
        root = Path(cluster[0]._log.parent) / "s3" / parts.netloc / parts.path.lstrip("/")
    (root / "data" / "orphan.parquet").write_bytes(b"x")
    for path in root.rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime, stat.st_mtime - 4 * DAYS_S))
    return "orphan.parquet"


def test_engines_read_the_rows_of_spark(spark: Spark, cluster: BrokerProcesses, namespace: str) -> None:
    """All engines read the rows of one engine, also with delete files."""
    table, short = f"lake.{namespace}.t", f"{namespace}.t"
    spark.sql(
        f"CREATE TABLE {table} (id bigint, part int, text string) USING iceberg PARTITIONED BY (part) "
        "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
    )
    spark.sql(f"INSERT INTO {table} SELECT id, cast(id % 3 AS int), cast(id AS string) FROM range(100)")
    spark.sql(f"DELETE FROM {table} WHERE id % 10 = 4")
    catalog = pyiceberg_of(cluster)
    catalog.load_table(short).append(catalog.load_table(short).scan(row_filter="id < 3").to_arrow())
    with duckdb_of(cluster) as duck:
        duck.execute(f"INSERT INTO lake.{namespace}.t VALUES (1000, 7, 'duck')")
        expected = sorted(duck.execute(f"SELECT * FROM lake.{namespace}.t").fetchall())
    assert len(expected) == 94
    assert spark.rows(f"SELECT * FROM {table}") == expected
    assert arrow_rows(catalog, short) == expected
    assert polars_rows(cluster, short) == expected
