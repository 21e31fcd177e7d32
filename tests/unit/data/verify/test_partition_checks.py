"""Checks of partitioned tables by `lakestream doctor`: each file must be in the partition of its rows."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from msgspec.structs import replace
from tests.harness.table.history_tables import Lake, many
from tests.unit.data.table.test_history_partitioned import arranged
from tests.unit.data.verify.test_table import Doctor
from tests.unit.data.verify.test_table_typed import reach

from lakestream.catalog.manifests.data_file import FileDescription


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
async def test_no_findings_when_files_are_in_their_partitions(doctor: Doctor, partition: str) -> None:
    await arranged(doctor.lake, many(0, 60), partition)
    await reach(doctor, 60)
    assert await doctor.problems() == []


async def test_finding_when_a_file_is_in_the_wrong_partition(doctor: Doctor) -> None:
    forged: list[FileDescription] = []

    def forge(file: FileDescription) -> FileDescription:
        """Gives the first file a wrong bucket."""
        if forged:
            return file
        forged.append(file)
        number, bucket = file.values
        return replace(file, values=(number, bucket + 3))

    await arranged(doctor.lake, many(0, 60), "_stream.partition, bucket(3, _stream.offset)", forge=forge)
    await reach(doctor, 60)
    (message,) = await doctor.problems()
    assert message.startswith(f"{forged[0].location} is in the partition "), message
    assert f"the row at offset {forged[0].offset_first} is of" in message
    assert "rewrite the file" in message


async def test_finding_when_one_row_is_in_the_wrong_partition(doctor: Doctor) -> None:
    """The partition value is null, as for rows without converted columns, but some rows have a value."""

    def forge(file: FileDescription) -> FileDescription:
        values: tuple[Any, ...] = (None,) if file.values == (b"k1",) else file.values
        return replace(file, values=values)

    await arranged(doctor.lake, many(0, 60), "_stream.key", forge=forge)
    await reach(doctor, 60)
    (message,) = await doctor.problems()
    assert "=null, but the row at offset" in message


async def test_no_finding_when_a_file_lacks_its_partition_column(doctor: Doctor) -> None:
    """As in files that Spark's `add_files` imports: by Iceberg's specification the column has the partition's value."""

    def forge(file: FileDescription) -> FileDescription:
        path = doctor.lake.root / doctor.lake.key(file.location)
        pq.write_table(_without_schema_id(pq.read_table(path)), path)
        return replace(file, size=path.stat().st_size, values=(7,))

    assert await arranged(doctor.lake, many(0, 60), "_stream.schema_id", forge=forge) == 1
    await reach(doctor, 60)
    assert await doctor.problems() == []


def _without_schema_id(rows: Any) -> Any:
    stream = rows.column("_stream").combine_chunks()
    fields = [field for field in stream.type if field.name != "schema_id"]
    left = pa.StructArray.from_arrays([stream.field(field.name) for field in fields], fields=fields)
    place = rows.schema.get_field_index("_stream")
    return rows.set_column(place, rows.schema.field(place).with_type(left.type), left)
