"""History of tables with converted values: consumers get the bytes that were produced."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyiceberg.manifest import DataFileContent
from tests.harness.table.history_tables import LOG, NOW_MS, TOPIC_ID
from tests.harness.table.typed_history_tables import TypedLake, odd_values, typed, typed_lake
from tests.harness.typed.toy_format import value

from lakestream.catalog.operations.update_schema import evolve, with_value_column
from lakestream.data.table.read import row_groups
from lakestream.data.table.read.parquet_footer import read_footer
from lakestream.data.typed import column_buffers, columns_to_values
from lakestream.errors import Corrupt
from lakestream.schemas.value_format import SchemaMode


@pytest.fixture
async def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TypedLake]:
    async with typed_lake(tmp_path, monkeypatch) as lake:
        yield lake


async def test_produced_values_are_read_back(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(200), group_bytes_max=2000)
    records += await lake.type([value(1, "a", 1, None), None])
    records += await lake.type([None, None])
    records += await lake.type([b"raw", b""])
    assert await lake.read_all() == records
    for offset in (0, 57, 199, 203):
        past = await lake.history.read(LOG, offset, 1)
        assert past.batches


async def test_values_of_many_rows_are_converted_in_parts(lake: TypedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 40)
    monkeypatch.setattr(columns_to_values, "ROWS_MIN", 1)
    await typed(lake)
    records = await lake.type(odd_values(200))
    assert await lake.read_all() == records


async def test_rows_with_long_lists_are_read_in_smaller_batches(
    lake: TypedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await typed(lake)
    records = await lake.type([value(1, "a", number, [0.5] * 100) for number in range(50)])
    read, sizes = row_groups._in_table_layout, []

    def noted(batch: Any, footer: Any) -> Any:
        sizes.append(len(batch))
        return read(batch, footer)

    monkeypatch.setattr(row_groups, "_in_table_layout", noted)
    monkeypatch.setattr(row_groups, "BATCH_VALUES", 1_200)
    assert await lake.read_all() == records
    assert max(sizes) == 10, "each row has 100 elements, and less than 20 other values"


async def test_row_groups_with_many_values_count_as_large(lake: TypedLake) -> None:
    """Nulls take almost no bytes in a file, but memory."""
    await typed(lake)
    await lake.type([value(1, "a", 1, [None] * 10_000)] * 20)
    (file,) = lake.root.rglob("data/**/*.parquet")
    body = file.read_bytes()
    (group,) = read_footer(body, len(body), "a file").groups
    assert len(body) < 200_000 <= group.values <= group.size


async def test_values_are_read_after_columns_and_writer_schemas_were_added(lake: TypedLake) -> None:
    await lake.schema(2, "named")
    records = await lake.type([value(2, "a"), b"?", None])
    assert await lake.read_all() == records
    await lake.schema(1, "full")
    records += await lake.type([value(1, "b", 1, [1.5]), value(2, "c")])
    assert await lake.read_all() == records, "also if writer schemas are cached already"


async def test_values_are_read_after_conversion_was_switched_off(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(20))
    await evolve(lake.catalog, TOPIC_ID, with_value_column)
    records += await lake.type([b"bytes", None, value(1, "a", 1, None)], SchemaMode.NONE)
    records += await lake.type([value(1, "b", 2, None), b"raw", None])
    assert await lake.read_all() == records


async def test_bytes_are_read_from_before_the_first_schema(lake: TypedLake) -> None:
    records = await lake.type([b"raw", None], SchemaMode.NONE)
    await typed(lake)
    records += await lake.type(odd_values(20))
    assert await lake.read_all() == records


async def test_deleted_rows_and_timestamps_of_converted_values(lake: TypedLake) -> None:
    await typed(lake)
    records = await lake.type(odd_values(50))
    (file,) = lake.root.rglob("data/**/*.parquet")
    deletes = pa.table({"file_path": [f"file://{file}"] * 4, "pos": pa.array([0, 1, 2, 30], pa.int64())})
    await lake.replace([], [await lake.foreign_file(deletes, content=DataFileContent.POSITION_DELETES)], keep=True)
    assert await lake.read_all() == [one for one in records if one.offset not in (0, 1, 2, 30)]
    assert await lake.history.first_at(LOG, 0, NOW_MS + 30) == (NOW_MS + 31, 31)


async def test_values_are_read_after_engines_renamed_moved_and_widened_columns(lake: TypedLake) -> None:
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


async def test_error_names_the_missing_column(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None)])
    await lake.replace([await lake.foreign_file(rows_of(lake).drop_columns(["age"]))])
    with pytest.raises(Corrupt, match=r"rows of schema 1 .*column of age \(field id \d+\) is missing"):
        await lake.read_all()


async def test_error_names_the_value_that_its_schema_does_not_allow(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None), value(1, "b", 2, None)])
    rows = rows_of(lake)
    place = rows.schema.get_field_index("age")
    large = rows.set_column(place, rows.schema.field("age").with_type(pa.int64()), pa.array([1, 2**40]))
    await lake.replace([await lake.foreign_file(large)])
    with pytest.raises(Corrupt, match=r"rows of schema 1 cannot be encoded.*age"):
        await lake.read_all()


async def test_error_names_the_missing_writer_schema(lake: TypedLake) -> None:
    await typed(lake)
    await lake.type([value(1, "a", 1, None)])
    await lake.catalog.writers.remove(TOPIC_ID)
    with pytest.raises(Corrupt, match=r"rows of writer schema 1, which the metadata store lacks"):
        await lake.read_all()


def rows_of(lake: TypedLake) -> pa.Table:
    """Returns the rows of the only file."""
    (file,) = lake.root.rglob("data/**/*.parquet")
    return pq.ParquetFile(file).read()
