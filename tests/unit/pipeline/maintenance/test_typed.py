"""Maintenance of typed tables: files become others, and every value stays what was produced."""

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.unit.data.table.lakes import LOG, TOPIC_ID
from tests.unit.data.table.typed_lakes import TypedLake, odd_values, typed, typed_lake
from tests.unit.data.typed.tiny import value
from tests.unit.pipeline.maintenance.test_foreign import keeper, last_of_each, listing

from lakestream.catalog.evolve import evolve, with_value
from lakestream.schemas.typing import Mode


@pytest.fixture
async def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    async with typed_lake(tmp_path, monkeypatch) as lake:
        yield lake


async def test_files_are_merged_with_all_their_columns(lake: TypedLake) -> None:
    await lake.schema(2, "named")
    records = await lake.type([value(2, "early"), None, b"raw"])
    await typed(lake)
    records += await lake.type(odd_values(30))
    await evolve(lake.catalog, TOPIC_ID, with_value)
    records += await lake.type([b"bytes", None], Mode.NONE)
    records += await lake.type(odd_values(30))
    done = await (await keeper(lake)).maintain()
    assert (done.files_merged, done.files_written, done.failed) == (4, 1, 0)
    assert await lake.read_all() == records
    (file,) = (await listing(lake)).data
    merged = pq.ParquetFile(lake.root / lake.key(file.location)).read()
    assert merged.column("name").to_pylist()[0] == "early"
    assert {"name", "age", "sizes", "value", "_stream"} == set(merged.schema.names)
    assert (file.tombstones or 0) >= sum(record.value is None for record in records)


async def test_deleted_rows_leave_with_a_merge(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    (file,) = (await listing(lake)).data
    records += await lake.type(odd_values(20))
    places = pa.table({"file_path": [file.location] * 3, "pos": pa.array([0, 4, 5], pa.int64())})
    await lake.replace([], [await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)], keep=True)
    done = await (await keeper(lake)).maintain()
    assert (done.files_merged, done.failed) == (2, 0)
    assert await lake.read_all() == [one for one in records if one.offset not in (0, 4, 5)]


async def test_key_compaction(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(40))
    records += await lake.type(odd_values(10))
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    done = await (await keeper(lake, **settings)).maintain()
    assert done.failed == 0
    assert done.rows_removed == len(records) - 3
    assert await lake.read_all() == last_of_each(records)


async def test_a_tombstone_is_no_row_whose_value_is_in_columns(lake: TypedLake) -> None:
    """Deletions go after a while; typed values have nothing in the column of bytes either."""
    await evolve(lake.catalog, TOPIC_ID, with_value)
    await typed(lake)
    records = await lake.type([value(1, "a", 1, None), None, b"raw", value(2, "b")])
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
    maintenance = await keeper(lake, **settings)
    await maintenance.maintain()
    await lake.type([value(1, "k", 1, None)])
    maintenance._looked.clear()
    assert (await lake.history.read(LOG, 0, 1 << 20)).batches
    left = await lake.read_all()
    assert {record.value for record in left} >= {b"raw", value(2, "b")}
    assert all(record in left for record in records[2:])


async def test_rows_leave_a_file_that_others_have_widened(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    (file,) = (await listing(lake)).data
    rows = pq.ParquetFile(lake.root / lake.key(file.location)).read()
    note = pa.field("note", pa.string(), metadata={b"PARQUET:field_id": b"999"})
    widened = rows.append_column(note, pa.array([f"note {at}" for at in range(len(rows))]))
    await lake.replace([await lake.foreign_file(widened)])
    records += await lake.type(odd_values(10))
    settings = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
    done = await (await keeper(lake, **settings)).maintain()
    assert done.failed == 0
    assert await lake.read_all() == last_of_each(records)
