"""The REST catalog as DuckDB, pyiceberg and polars use it, on a disk and on S3."""

import threading
from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog import Catalog as PyIceberg
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import arrow_rows, duckdb_of, polars_rows, pyiceberg_of

from lakestream.testing.brokers import BrokerProcesses

COLUMNS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("inner", pa.struct([("x", pa.int32())]))])


@pytest.fixture(scope="module", params=["one-sqlite", "one-oxia-s3"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def catalog(cluster: BrokerProcesses) -> PyIceberg:
    return pyiceberg_of(cluster)


@pytest.fixture
def namespace(catalog: PyIceberg, request: pytest.FixtureRequest) -> str:
    name = request.function.__name__
    catalog.create_namespace(name)
    return str(name)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "text": [f"t{number}" for number in ids], "inner": [{"x": 1}] * len(ids)}, COLUMNS)


def ids(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow()["id"].to_pylist())


def test_pyiceberg_changes_rows_schema_and_snapshots(catalog: PyIceberg, namespace: str) -> None:
    table = catalog.create_table(f"{namespace}.t", COLUMNS, properties={"a": "b"})
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table(f"{namespace}.t", COLUMNS)
    table.append(rows(1, 2, 3))
    table.append(rows(4))
    table.delete("id = 2")
    assert ids(table) == [1, 3, 4]
    with table.update_schema() as update:
        update.add_column("more", IntegerType())
        update.rename_column("text", "words")
    with table.update_spec() as spec:
        spec.add_identity("id")
    with table.transaction() as change:
        change.set_properties(c="d")
        change.remove_properties("a")
    table.manage_snapshots().create_tag(table.refresh().metadata.snapshots[0].snapshot_id, "first").commit()
    table.overwrite(table.scan(row_filter="id < 4").to_arrow())
    table.upsert(table.scan().to_arrow(), join_cols=["id"])
    loaded = catalog.load_table(f"{namespace}.t")
    assert ids(loaded) == [1, 3]
    assert loaded.properties == {"c": "d"}
    assert [field.name for field in loaded.schema().fields] == ["id", "words", "inner", "more"]
    assert loaded.scan(snapshot_id=loaded.snapshot_by_name("first").snapshot_id).to_arrow().num_rows == 3  # type: ignore[union-attr]
    loaded.maintenance.expire_snapshots().by_id(loaded.metadata.snapshots[1].snapshot_id).commit()
    assert ids(loaded) == [1, 3]


def test_pyiceberg_uses_namespaces_and_unusual_names(catalog: PyIceberg) -> None:
    odd = ("we.ird/ü +%",)
    catalog.create_namespace(odd, {"owner": "me"})
    with pytest.raises(NamespaceAlreadyExistsError):
        catalog.create_namespace(odd)
    assert odd in catalog.list_namespaces()
    assert catalog.load_namespace_properties(odd) == {"owner": "me"}
    catalog.update_namespace_properties(odd, removals={"owner"}, updates={"a": "b"})
    assert catalog.load_namespace_properties(odd) == {"a": "b"}
    catalog.create_namespace((*odd, "inner"))
    assert catalog.list_namespaces(odd) == [(*odd, "inner")]
    catalog.drop_namespace((*odd, "inner"))
    table = catalog.create_table((*odd, "tä/b le.1+%"), COLUMNS)
    table.append(rows(1))
    with pytest.raises(NamespaceNotEmptyError):
        catalog.drop_namespace(odd)
    moved = catalog.rename_table((*odd, "tä/b le.1+%"), ("default", "ü/2"))
    assert ids(moved) == [1]
    assert catalog.list_tables(odd) == []
    assert not catalog.table_exists((*odd, "tä/b le.1+%"))
    catalog.drop_namespace(odd)
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables(odd)
    place = moved.metadata_location
    catalog.drop_table(("default", "ü/2"))
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("default", "ü/2"))
    assert ids(catalog.register_table(("default", "back"), place)) == [1]
    catalog.purge_table(("default", "back"))
    assert not catalog.table_exists(("default", "back"))


def test_one_of_many_commits_to_the_same_snapshot_succeeds(
    cluster: BrokerProcesses, catalog: PyIceberg, namespace: str
) -> None:
    table = catalog.create_table(f"{namespace}.t", COLUMNS, properties={"commit.retry.num-retries": "0"})
    for attempt in range(3):
        table.refresh()
        tables = [pyiceberg_of(cluster).load_table(f"{namespace}.t") for _ in range(4)]
        outcomes: list[str] = []

        def write(table: Table, number: int, outcomes: list[str] = outcomes) -> None:
            try:
                table.append(rows(number))
                outcomes.append("won")
            except CommitFailedException:
                outcomes.append("lost")

        threads = [
            threading.Thread(target=write, args=(table, attempt * 10 + place)) for place, table in enumerate(tables)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["lost"] * 3 + ["won"]
        assert len(ids(table)) == attempt + 1


def test_concurrent_appends_with_retries_all_succeed(
    cluster: BrokerProcesses, catalog: PyIceberg, namespace: str
) -> None:
    retries = {"commit.retry.num-retries": "40", "commit.retry.min-wait-ms": "5", "commit.retry.max-wait-ms": "200"}
    table = catalog.create_table(f"{namespace}.t", COLUMNS, properties=retries)

    def write(place: int) -> None:
        table = pyiceberg_of(cluster).load_table(f"{namespace}.t")
        for number in range(3):
            table.append(rows(place * 10 + number))

    threads = [threading.Thread(target=write, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(table) == [place * 10 + number for place in range(3) for number in range(3)]


def test_duckdb_creates_changes_and_reads_tables(cluster: BrokerProcesses, catalog: PyIceberg, namespace: str) -> None:
    with duckdb_of(cluster) as duck:
        duck.execute(f"CREATE TABLE lake.{namespace}.t (id BIGINT, text VARCHAR)")
        assert duck.execute(f"SELECT count(*) FROM lake.{namespace}.t").fetchall() == [(0,)]
        duck.execute(f"INSERT INTO lake.{namespace}.t VALUES (1, 'a'), (2, 'b')")
        duck.execute(f"INSERT INTO lake.{namespace}.t VALUES (3, 'c')")
        duck.execute(f"DELETE FROM lake.{namespace}.t WHERE id = 2")
        duck.execute(f"UPDATE lake.{namespace}.t SET text = 'z' WHERE id = 1")
        result = duck.execute(f"SELECT * FROM lake.{namespace}.t ORDER BY id").fetchall()
        assert result == [(1, "z"), (3, "c")]
        duck.execute(f"CREATE TABLE lake.{namespace}.made AS SELECT range AS id FROM range(10)")
        assert duck.execute(f"SELECT sum(id) FROM lake.{namespace}.made").fetchall() == [(45,)]
        duck.execute(f"CREATE SCHEMA lake.{namespace}_2")
        duck.execute(f"DROP SCHEMA lake.{namespace}_2")
        duck.execute(f"DROP TABLE lake.{namespace}.made")
        assert not catalog.table_exists(f"{namespace}.made")
    assert arrow_rows(catalog, f"{namespace}.t") == polars_rows(cluster, f"{namespace}.t") == result


def test_engines_read_the_rows_of_pyiceberg(cluster: BrokerProcesses, catalog: PyIceberg, namespace: str) -> None:
    columns = pa.schema([("id", pa.int64()), ("value", pa.binary()), ("at", pa.timestamp("us", tz="UTC"))])
    table = catalog.create_table(f"{namespace}.t", columns)
    for start in range(0, 300, 100):
        numbers = range(start, start + 100)
        values = [None if number % 7 == 0 else bytes([number % 256, 0, 255]) for number in numbers]
        table.append(
            pa.table({"id": list(numbers), "value": values, "at": [number * 1000 for number in numbers]}, columns)
        )
    table.delete("id >= 150 and id < 160")
    with table.update_schema() as update:
        update.add_column("later", LongType())
    expected = arrow_rows(catalog, f"{namespace}.t")
    assert len(expected) == 290
    assert polars_rows(cluster, f"{namespace}.t") == expected
    with duckdb_of(cluster) as duck:
        duck.execute("SET TimeZone = 'UTC'")
        assert sorted(
            duck.execute(f"SELECT * FROM lake.{namespace}.t").to_arrow_table().to_pylist(), key=_id
        ) == sorted(table.refresh().scan().to_arrow().to_pylist(), key=_id)


def _id(row: dict[str, int]) -> int:
    return row["id"]
