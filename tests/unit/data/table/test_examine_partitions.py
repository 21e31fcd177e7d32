"""What `lakestream doctor` says of partitioned tables: a file whose partition is not that of its rows is named."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace
from tests.unit.data.table.lakes import Lake, many
from tests.unit.data.table.test_examine import Doctor
from tests.unit.data.table.test_examine_typed import reach
from tests.unit.data.table.test_history_arranged import arranged

from lakestream.catalog.data_files import FileDescription


@pytest.fixture
async def doctor(tmp_path: Path) -> AsyncIterator[Doctor]:
    lake = await Lake(tmp_path).open()
    made = Doctor(lake)
    await made.topics.create("orders", made.topic)
    yield made
    await made.threads.close()
    await lake.close()


@pytest.mark.parametrize(
    "partition",
    [
        "_stream.partition, truncate(1, _stream.key), bucket(3, _stream.offset)",
        "day(_stream.timestamp), _stream.timestamp_type, truncate(50, _stream.offset)",
    ],
)
async def test_nothing_while_all_is_well(doctor: Doctor, partition: str) -> None:
    await arranged(doctor.lake, many(0, 60), partition)
    await reach(doctor, 60)
    assert await doctor.troubles() == []


async def test_a_file_whose_partition_lies_is_named(doctor: Doctor) -> None:
    forged: list[FileDescription] = []

    def forge(file: FileDescription) -> FileDescription:
        """The first file says that it is of a bucket that it is not of."""
        if forged:
            return file
        forged.append(file)
        number, bucket = file.values
        return replace(file, values=(number, bucket + 3))

    await arranged(doctor.lake, many(0, 60), "_stream.partition, bucket(3, _stream.offset)", forge=forge)
    await reach(doctor, 60)
    (said,) = await doctor.troubles()
    assert said.startswith(f"{forged[0].location} is in the partition "), said
    assert f"the row at offset {forged[0].offset_first} is of" in said
    assert "have the file written anew" in said


async def test_one_row_among_many_that_is_of_another_partition(doctor: Doctor) -> None:
    """It says null, as of rows that have no columns, and has some that are something."""

    def forge(file: FileDescription) -> FileDescription:
        values: tuple[Any, ...] = (None,) if file.values == (b"k1",) else file.values
        return replace(file, values=values)

    await arranged(doctor.lake, many(0, 60), "_stream.key", forge=forge)
    await reach(doctor, 60)
    (said,) = await doctor.troubles()
    assert "=null, but the row at offset" in said


async def test_a_file_may_lack_the_column_that_it_is_partitioned_by(doctor: Doctor) -> None:
    """As those that Spark's `add_files` brings in: by Iceberg's spec the partition says what it is."""

    def forge(file: FileDescription) -> FileDescription:
        path = doctor.lake.root / doctor.lake.key(file.location)
        pq.write_table(_without_schema_id(pq.read_table(path)), path)
        return replace(file, size=path.stat().st_size, values=(7,))

    assert await arranged(doctor.lake, many(0, 60), "_stream.schema_id", forge=forge) == 1
    await reach(doctor, 60)
    assert await doctor.troubles() == []


def _without_schema_id(rows: Any) -> Any:
    stream = rows.column("_stream").combine_chunks()
    fields = [field for field in stream.type if field.name != "schema_id"]
    left = pa.StructArray.from_arrays([stream.field(field.name) for field in fields], fields=fields)
    place = rows.schema.get_field_index("_stream")
    return rows.set_column(place, rows.schema.field(place).with_type(left.type), left)
