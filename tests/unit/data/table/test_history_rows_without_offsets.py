"""Rows that an engine inserted without an offset, before the catalog rejected them: reads of the topic skip them, and
`lakestream doctor` reports them.
"""

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import pytest_asyncio
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.typedef import Record as IcebergRecord
from tests.harness.table.history_tables import LOG, NOW_MS, Lake, many, rows_of
from tests.unit.data.verify.test_table import Doctor, only

from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.table_metadata.updates import AddSchema, SetCurrentSchema
from lakestream.catalog.topic_table.live_file import by_partition
from lakestream.data.verify.sampling import FULL, SAMPLED, Depth
from lakestream.model import PartitionId
from lakestream.pipeline.maintenance.key_compaction import CompactionSettings
from lakestream.pipeline.maintenance.plan import Policy, plan
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.tasks import Compact, Merge
from lakestream.pipeline.repair.candidates import unbounded

COMPACTED = CompactionSettings(delete_retention_ms=0, min_lag_ms=0, max_lag_ms=2**60, dirty_ratio_min=0)
DEEP = "null _stream", "null offset"
"""The two ways in which engines write a row without an offset."""


async def drop_not_null(lake: Lake) -> None:
    """Does ALTER TABLE orders ALTER COLUMN _stream DROP NOT NULL, and the same for the columns in it."""
    fields = copy.deepcopy(schema_of((await lake.table()).metadata)["fields"])
    for field in (fields[-1], *fields[-1]["type"]["fields"]):
        field["required"] = False
    schema = {"type": "struct", "fields": fields}
    await lake.catalog.commit(LOG.topic_id, [], [AddSchema(schema), SetCurrentSchema(-1)])


@pytest_asyncio.fixture
async def doctor(tmp_path: Path) -> AsyncIterator[Doctor]:
    lake = await Lake(tmp_path).open()
    doctor = Doctor(lake)
    await doctor.topics.create("orders", doctor.topic)
    await drop_not_null(lake)
    yield doctor
    await doctor.threads.close()
    await lake.close()


def optional(kind: Any) -> Any:
    """Returns the type with all struct fields optional, with their ids."""
    if pa.types.is_struct(kind):
        return pa.struct([optional_field(kind.field(place)) for place in range(kind.num_fields)])
    return pa.list_(optional_field(kind.value_field)) if pa.types.is_list(kind) else kind


def optional_field(field: Any) -> Any:
    return field.with_type(optional(field.type)).with_nullable(True)


def without_offsets(rows: pa.Table, lacking: range, how: str) -> pa.Table:
    """Returns the table with the offsets of some rows removed."""
    found = rows.to_pylist()
    for at in lacking:
        found[at]["_stream"] = None if how == DEEP[0] else {**found[at]["_stream"], "offset": None, "partition": None}
    return pa.Table.from_pylist(found, pa.schema([optional_field(field) for field in rows.schema]))


async def inserted(
    lake: Lake, rows: pa.Table, *, counted: bool = True, offsets: tuple[int, int] | None = None, **parquet: Any
) -> DataFile:
    """Writes a file as an engine's INSERT does. `counted`: its manifest has the number of rows without an offset."""
    file = await lake.foreign_file(rows, bounds=False, **parquet)
    if offsets is None:
        file[3] = IcebergRecord(None)
    if counted:
        stream = rows.column("_stream").to_pylist()
        file[8] = {4: sum(row is None or row["offset"] is None for row in stream)}
    if offsets is not None:
        file[10], file[11] = ({4: one.to_bytes(8, "little"), 3: bytes(4)} for one in offsets)
    return file


@pytest.mark.parametrize("how", [*DEEP, "no column"])
@pytest.mark.parametrize("counted", [True, False])
async def test_a_file_without_offsets_is_skipped_by_history(doctor: Doctor, how: str, counted: bool) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 300), group_bytes_max=2_000)
    rows = without_offsets(rows_of(many(0, 20)), range(20), DEEP[0] if how == "no column" else how)
    if how == "no column":
        rows = rows.drop_columns(["_stream"])
        file = await inserted(lake, rows, counted=False)
    else:
        file = await inserted(lake, rows, counted=counted, row_group_size=7)
    await lake.replace([file], keep=True)
    await doctor.move(many(300, 400))
    assert await lake.read_all() == many(0, 400)
    assert await lake.read_all(offset=150, bytes_max=1) == many(150, 400)
    assert await lake.history.start(LOG) == 0
    assert await lake.history.start(PartitionId(LOG.topic_id, 1)) is None
    assert [one.offset_end for one in await lake.history.files(LOG, 0)] == [300, 400]
    assert await lake.history.first_at(LOG, 0, NOW_MS + 250) == (NOW_MS + 250, 250)
    assert await lake.history.newest(LOG, 0) == (NOW_MS + 399, 399)


@pytest.mark.parametrize("how", DEEP)
@pytest.mark.parametrize("counted", [True, False])
async def test_rows_without_offsets_among_others_are_skipped_by_history(
    doctor: Doctor, how: str, counted: bool
) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    rows = without_offsets(pa.concat_tables([rows_of(many(0, 100)), rows_of(many(0, 30))]), range(100, 130), how)
    rows = rows.take(pa.array([at * 7 % 130 for at in range(130)]))
    await lake.replace([await inserted(lake, rows, counted=counted, offsets=(0, 99), row_group_size=40)])
    await doctor.move(many(100, 120))
    assert await lake.read_all() == many(0, 120)
    assert await lake.read_all(offset=50, bytes_max=1) == many(50, 120)
    assert await lake.history.first_at(LOG, 0, NOW_MS + 70) == (NOW_MS + 70, 70)


@pytest.mark.parametrize("depth", [SAMPLED, FULL])
@pytest.mark.parametrize("counted", [True, False])
async def test_doctor_names_a_file_without_offsets_and_checks_the_others(
    doctor: Doctor, counted: bool, depth: Depth
) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    await doctor.move(many(100, 200))
    rows = without_offsets(rows_of(many(0, 20)), range(20), DEEP[0])
    file = await inserted(lake, rows, counted=counted)
    await lake.replace([file], keep=True)
    only(await doctor.problems(depth), file.file_path, "20 rows have no offset", "produce them to the topic", "DELETE")
    await lake.replace([await lake.foreign_file(rows_of(many(50, 150)))], keep=True)
    found = await doctor.problems(depth)
    assert any("offset 50 is in" in one for one in found), found


@pytest.mark.parametrize("counted", [True, False])
async def test_the_doctor_counts_rows_without_offsets_among_others(doctor: Doctor, counted: bool) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    rows = without_offsets(pa.concat_tables([rows_of(many(0, 100)), rows_of(many(0, 30))]), range(100, 130), DEEP[1])
    file = await inserted(lake, rows, counted=counted, offsets=(0, 99), row_group_size=40)
    await lake.replace([file])
    only(await doctor.problems(), file.file_path, "30 rows have no offset")


async def test_doctor_has_no_finding_when_rows_without_offsets_are_deleted(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    file = await inserted(lake, without_offsets(rows_of(many(0, 20)), range(20), DEEP[0]))
    places = pa.table({"file_path": [file.file_path] * 20, "pos": pa.array(range(20), pa.int64())})
    deletes = await lake.foreign_file(places, content=DataFileContent.POSITION_DELETES)
    path = file.file_path.encode()
    deletes[10], deletes[11] = {2147483546: path}, {2147483546: path}
    await lake.replace([file], [deletes], keep=True)
    assert await doctor.problems() == []
    assert await lake.read_all() == many(0, 100)


async def test_a_file_is_left_out_of_its_partition_when_it_has_rows_without_offsets(doctor: Doctor) -> None:
    lake = doctor.lake
    await doctor.move(many(0, 100))
    (good,) = (await LiveFileReader(lake.store, lake.catalog.locations).of_main((await lake.table()).metadata)).data
    mixed = good._replace(location="mixed", offsets_null=3)
    unknown = good._replace(location="unknown", offsets_null=None)
    assert by_partition([good, mixed, unknown]) == {0: [good, unknown]}


async def test_maintenance_skips_files_with_rows_without_offsets(doctor: Doctor) -> None:
    """Rewriting them would remove rows that exist nowhere else."""
    lake = doctor.lake
    for start in range(0, 100, 10):
        await doctor.move(many(start, start + 10))
    file = await inserted(lake, without_offsets(rows_of(many(0, 20)), range(20), DEEP[0]))
    await lake.replace([file], keep=True)

    async def planned(policy: Policy) -> Any:
        metadata = (await lake.table()).metadata
        listing = await LiveFileReader(lake.store, lake.catalog.locations).of_main(metadata)
        now_ms = metadata["last-updated-ms"] + 10_000_000
        return plan(metadata, listing, policy, {}, now_ms, MergeSettings()), listing

    made, listing = await planned(Policy())
    assert made.tasks
    assert all(isinstance(task, Merge) for task in made.tasks)
    assert file.file_path not in {source.location for task in made.tasks for source in task.sources}
    assert unbounded(listing.data) == []
    compacted, _ = await planned(Policy(compaction=COMPACTED))
    assert any(isinstance(task, Compact) for task in compacted.tasks), compacted.skipped

    both = pa.concat_tables([rows_of(many(0, 100)), rows_of(many(0, 30))])
    mixed = await inserted(lake, without_offsets(both, range(100, 130), DEEP[0]), offsets=(0, 99))
    await lake.replace([mixed])
    made, listing = await planned(Policy(compaction=COMPACTED))
    assert made.tasks == ()
    assert "rows without offsets" in made.skipped or not made.tasks
    assert "30 rows without offsets" in unbounded(listing.data)[0]
