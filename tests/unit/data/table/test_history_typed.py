"""History of typed tables: consumers get the bytes that were produced, whatever became of their columns."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.unit.data.table.lakes import LOG, NOW_MS, TOPIC_ID
from tests.unit.data.table.typed_lakes import TypedLake, odd_values, typed, typed_lake
from tests.unit.data.typed.tiny import value

from lakestream.catalog.evolve import evolve, with_value
from lakestream.data.typed import restoring
from lakestream.errors import Corrupt
from lakestream.schemas.typing import Mode


@pytest.fixture
async def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    async with typed_lake(tmp_path, monkeypatch) as lake:
        yield lake


async def test_what_was_produced_is_read_back(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(200), group_bytes_max=2000)
    records += await lake.type([value(1, "a", 1, None), None])
    records += await lake.type([None, None])
    records += await lake.type([b"raw", b""])
    assert await lake.read_all() == records
    for offset in (0, 57, 199, 203):
        past = await lake.history.read(LOG, offset, 1)
        assert past.batches


async def test_many_rows_become_values_in_parts(lake: TypedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restoring, "SLOTS_MAX", 40)
    monkeypatch.setattr(restoring, "ROWS_MIN", 1)
    await typed(lake)
    records = await lake.type(odd_values(200))
    assert await lake.read_all() == records


async def test_columns_and_writers_that_came_later(lake: TypedLake) -> None:
    await lake.schema(2, "named")
    records = await lake.type([value(2, "a"), b"?", None])
    assert await lake.read_all() == records
    await lake.schema(1, "full")
    records += await lake.type([value(1, "b", 1, [1.5]), value(2, "c")])
    assert await lake.read_all() == records, "also by a broker that had read the writers before"


async def test_a_table_that_became_one_of_bytes_again(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    await evolve(lake.catalog, TOPIC_ID, with_value)
    records += await lake.type([b"bytes", None, value(1, "a", 1, None)], Mode.NONE)
    records += await lake.type([value(1, "b", 2, None), b"raw", None])
    assert await lake.read_all() == records


async def test_only_bytes_before_there_was_a_schema(lake: TypedLake) -> None:
    records = await lake.type([b"raw", None], Mode.NONE)
    await typed(lake)
    records += await lake.type(odd_values(20))
    assert await lake.read_all() == records


async def test_deleted_rows_and_times(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(50))
    (file,) = lake.root.rglob("data/**/*.parquet")
    deletes = pa.table({"file_path": [f"file://{file}"] * 4, "pos": pa.array([0, 1, 2, 30], pa.int64())})
    await lake.replace([], [await lake.foreign_file(deletes, content=DataFileContent.POSITION_DELETES)], keep=True)
    assert await lake.read_all() == [one for one in records if one.offset not in (0, 1, 2, 30)]
    assert await lake.history.first_at(LOG, 0, NOW_MS + 30) == (NOW_MS + 31, 31)


async def test_what_foreign_hands_rename_move_and_widen(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(50))
    rows = rows_of(lake)
    schema = rows.schema
    fields = [schema.field(name) for name in ("_stream", "sizes", "age", "name")]
    made = rows.select([one.name for one in fields]).cast(
        pa.schema(
            [
                fields[0],
                _wider(fields[1], pa.list_(_wider(fields[1].type.value_field, pa.float64()))),
                _wider(fields[2], pa.int64()),
                fields[3],
            ]
        )
    )
    renamed = made.rename_columns(["_stream", "lengths", "years", "title"])
    await lake.replace([await lake.foreign_file(renamed)])
    assert await lake.read_all() == records


def _wider(field: Any, kind: Any) -> Any:
    return field.with_type(kind)


async def test_a_column_that_is_gone_is_named(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None)])
    await lake.replace([await lake.foreign_file(rows_of(lake).drop_columns(["age"]))])
    with pytest.raises(Corrupt, match=r"rows of schema 1 .*column of age \(field id \d+\) is gone"):
        await lake.read_all()


async def test_a_value_that_its_schema_cannot_say(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), value(1, "b", 2, None)])
    rows = rows_of(lake)
    place = rows.schema.get_field_index("age")
    large = rows.set_column(place, rows.schema.field("age").with_type(pa.int64()), pa.array([1, 2**40]))
    await lake.replace([await lake.foreign_file(large)])
    with pytest.raises(Corrupt, match=r"rows of schema 1 are no values any more.*age"):
        await lake.read_all()


async def test_a_writer_that_nobody_knows(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None)])
    await lake.catalog.writers.remove(TOPIC_ID)
    with pytest.raises(Corrupt, match=r"rows that writer 1 typed, and nobody knows it"):
        await lake.read_all()


def rows_of(lake: TypedLake) -> pa.Table:
    """Of the only file."""
    (file,) = lake.root.rglob("data/**/*.parquet")
    return pq.ParquetFile(file).read()
