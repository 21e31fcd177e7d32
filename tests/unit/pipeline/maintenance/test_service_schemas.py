"""Tests maintenance of tables with schemas: files are rewritten, and every value keeps its produced bytes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.harness.table.history_tables import LOG, TOPIC_ID
from tests.harness.table.typed_history_tables import TypedLake, odd_values, typed, typed_lake
from tests.harness.typed.toy_format import value
from tests.unit.pipeline.maintenance.test_service_other_engines import last_of_each, listing, maintenance_of

from lakestream.catalog.operations.update_schema import evolve, with_value_column
from lakestream.schemas.value_format import SchemaMode


@pytest.fixture
async def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    async with typed_lake(tmp_path, monkeypatch) as lake:
        yield lake


async def test_files_are_merged_with_all_their_columns(lake: TypedLake) -> None:
    await lake.schema(2, "named")
    records = await lake.type([value(2, "early"), None, b"raw"])
    await typed(lake)
    records += await lake.type(odd_values(30))
    await evolve(lake.catalog, TOPIC_ID, with_value_column)
    records += await lake.type([b"bytes", None], SchemaMode.NONE)
    records += await lake.type(odd_values(30))
    done = await (await maintenance_of(lake)).maintain()
    assert (done.files_merged, done.files_written, done.failed) == (4, 1, 0)
    assert await lake.read_all() == records
    (file,) = (await listing(lake)).data
    merged = pq.ParquetFile(lake.root / lake.key(file.location)).read()
    assert merged.column("name").to_pylist()[0] == "early"
    assert {"name", "age", "sizes", "value", "_stream"} == set(merged.schema.names)
    assert (file.tombstones or 0) >= sum(record.value is None for record in records)


async def test_deleted_rows_are_removed_by_a_merge(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    (file,) = (await listing(lake)).data
    records += await lake.type(odd_values(20))
    places = pa.table({"file_path": [file.location] * 3, "pos": pa.array([0, 4, 5], pa.int64())})
    await lake.replace([], [await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)], keep=True)
    done = await (await maintenance_of(lake)).maintain()
    assert (done.files_merged, done.failed) == (2, 0)
    assert await lake.read_all() == [one for one in records if one.offset not in (0, 4, 5)]


async def test_key_compaction_keeps_the_last_value_of_each_key(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(40))
    records += await lake.type(odd_values(10))
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    done = await (await maintenance_of(lake, **settings)).maintain()
    assert done.failed == 0
    assert done.rows_removed == len(records) - 3
    assert await lake.read_all() == last_of_each(records)


async def test_row_with_columns_is_not_removed_as_a_tombstone(lake: TypedLake) -> None:
    """Both have null in the column of bytes."""
    await evolve(lake.catalog, TOPIC_ID, with_value_column)
    await typed(lake)
    records = await lake.type([value(1, "a", 1, None), None, b"raw", value(2, "b")])
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
    maintenance = await maintenance_of(lake, **settings)
    await maintenance.maintain()
    await lake.type([value(1, "k", 1, None)])
    maintenance._states.clear()
    assert (await lake.history.read(LOG, 0, 1 << 20)).batches
    left = await lake.read_all()
    assert {record.value for record in left} >= {b"raw", value(2, "b")}
    assert all(record in left for record in records[2:])


async def test_rows_are_removed_from_a_file_with_a_foreign_column(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    (file,) = (await listing(lake)).data
    rows = pq.ParquetFile(lake.root / lake.key(file.location)).read()
    note = pa.field("note", pa.string(), metadata={b"PARQUET:field_id": b"999"})
    widened = rows.append_column(note, pa.array([f"note {at}" for at in range(len(rows))]))
    await lake.replace([await lake.foreign_file(widened)])
    records += await lake.type(odd_values(10))
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    done = await (await maintenance_of(lake, **settings)).maintain()
    assert done.failed == 0
    assert await lake.read_all() == last_of_each(records)
