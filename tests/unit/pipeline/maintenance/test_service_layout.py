"""Tests maintenance of partitioned and sorted tables: rewritten rows stay in their partition, sorted."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType, LongType
from tests.harness.catalog.maintenance_tables import HOUR, MINUTE, Row, World, filed, some_rows

from lakestream.catalog.manifests.data_file import MovedRange, data_location
from lakestream.catalog.operations.append import append
from lakestream.catalog.operations.update_layout import TableLayout, file_layout, update_layout
from lakestream.catalog.table_metadata.updates import AddSpec, SetDefaultSpec
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.offsets import next_offsets
from lakestream.data.table.arrow.projection import project_columns
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.parquet_writer import ParquetSettings
from lakestream.data.table.write.partitioned_writer import write_files
from lakestream.pipeline.maintenance.service import MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings
from lakestream.pipeline.maintenance.table_file import cast_rows
from lakestream.pipeline.maintenance.worker import RewriteSettings
from lakestream.schemas.layout_terms import partition_terms, sort_terms

EAGER = MaintenanceSettings(merge=MergeSettings(files_min=2, many=2, young_ms=0), visit_ms=0)


class LayoutWorld(World):
    async def begin(self, partition: str, sort: str = "", settings: Mapping[str, str] | None = None) -> None:
        await self.start(settings)
        await self.set_layout(partition, sort)

    async def set_layout(self, partition: str, sort: str = "") -> None:
        layout = TableLayout(partition=partition_terms(partition), sort=sort_terms(sort))
        _, notice = await update_layout(self.catalog, await self.table(), layout)
        assert not notice

    async def move(self, rows: list[Row]) -> None:
        table = await self.table()
        location, start = table.metadata["location"], next_offsets(table.metadata).get(0, 0)
        # Writes and reads a file to get the rows as batches.
        ((plain, _),) = filed(rows, 0, location, self.ids)
        batches = pq.read_table(io.BytesIO(bytes(plain))).to_batches()
        made = []
        for body, file in write_files(
            cast_rows([project_columns(batch, PLAIN_COLUMNS) for batch in batches], PLAIN_COLUMNS),
            lambda offset: data_location(location, 0, offset, self.ids.new()),
            ParquetSettings(),
            PLAIN_COLUMNS,
            file_layout(table.metadata),
            0,
        ):
            await self.objects.create(self.catalog.locations.key_of(file.location), [bytes(body)])
            made.append(file)
        await append(self.catalog, table, made, [MovedRange(0, start, rows[-1].offset + 1)])

    async def contents(self) -> dict[tuple[int, Any], list[list[Row]]]:
        """Returns the rows of each file by spec id and partition values."""
        found: dict[tuple[int, Any], list[list[Row]]] = {}
        for file in await self.files():
            values = tuple(value for _, value in file.values)
            found.setdefault((file.spec_id, values), []).append(await self._rows(file))
        return found

    async def _rows(self, file: LiveFile) -> list[Row]:
        body = await self.objects.get(self.catalog.locations.key_of(file.location))
        rows = pq.read_table(io.BytesIO(bytes(body))).to_pylist()
        return [Row(row["_stream"]["offset"], row["_stream"]["key"], row["value"]) for row in rows]

    async def sorted_offsets(self) -> list[int]:
        return sorted(row.offset for row in await self.rows())


def keyed(start: int, count: int, time_ms: int = 0) -> list[Row]:
    return [Row(at, b"k%d" % (at % 3), b"v%d" % at, time_ms) for at in range(start, start + count)]


async def test_merges_stay_within_a_partition_and_its_spec() -> None:
    world = LayoutWorld()
    await world.begin("_stream.key")
    for start in range(0, 40, 10):
        await world.move(keyed(start, 10))
    await world.set_layout("bucket(2, _stream.offset)")
    for start in range(40, 80, 10):
        await world.move(keyed(start, 10))
    await world.maintenance(EAGER).maintain()
    found = await world.contents()
    assert sorted(key for key in found if key[0] == 1) == [(1, (b"k%d" % key,)) for key in range(3)]
    assert sorted(key for key in found if key[0] == 2) == [(2, (bucket,)) for bucket in range(2)]
    assert all(len(files) == 1 for files in found.values())
    for (spec, values), ((*rows,),) in found.items():
        assert [row.offset for row in rows] == sorted(row.offset for row in rows)
        if spec == 1:
            assert {row.key for row in rows} == {values[0]}
    assert await world.sorted_offsets() == list(range(80))


async def test_merged_file_has_the_sort_order_of_the_table() -> None:
    world = LayoutWorld()
    await world.begin("", "_stream.key desc")
    for start in range(0, 40, 10):
        await world.move(keyed(start, 10))
    await world.maintenance(EAGER).maintain()
    ((rows,),) = (await world.contents()).values()
    keys = [(-(row.key or b"k0")[1], row.offset) for row in rows]
    assert keys == sorted(keys)
    assert len(rows) == 40
    (file,) = await world.files()
    assert (file.offset_first, file.offset_last) == (0, 39)


async def test_compaction_keeps_partitions_and_the_newest_of_each_key() -> None:
    world = LayoutWorld()
    await world.begin("bucket(2, _stream.offset)", settings={"cleanup.policy": "compact"})
    for start in range(0, 30, 10):
        await world.move(keyed(start, 10))
    await world.maintenance(EAGER).maintain()
    found = await world.contents()
    assert sorted(row.offset for files in found.values() for rows in files for row in rows) == [27, 28, 29]
    assert {spec for spec, _ in found} == {1}
    bucket = BucketTransform(2).transform(LongType())
    buckets = {row.offset: values for (_, values), files in found.items() for rows in files for row in rows}
    assert buckets == {offset: (bucket(offset),) for offset in (27, 28, 29)}


async def test_expired_rows_are_removed_and_the_others_keep_their_partition() -> None:
    world = LayoutWorld()
    await world.begin("_stream.key", settings={"lakestream.table.retention.ms": str(HOUR)})
    await world.move([*keyed(0, 20), *keyed(20, 10, 2 * HOUR)])
    world.clock.ms = 2 * HOUR + MINUTE
    await world.log_start(20)
    await world.maintenance(EAGER).maintain()
    found = await world.contents()
    assert {values for _, values in found} == {(b"k%d" % key,) for key in range(3)}
    assert await world.sorted_offsets() == list(range(20, 30))


async def test_spec_of_another_engine_is_kept() -> None:
    world = LayoutWorld()
    await world.begin("_stream.key")
    foreign = {"fields": [{"name": "b", "transform": "bucket[4]", "source-id": 4}]}
    await world.catalog.change("a" * 32, lambda _: [AddSpec(foreign), SetDefaultSpec(-1)])
    for start in range(0, 40, 10):
        await world.append(some_rows(start, 10))
    await world.maintenance(EAGER).maintain()
    assert {spec for spec, _ in await world.contents()} == {0}
    assert len(await world.files()) == 1


async def test_compaction_completes_when_the_keys_do_not_fit_in_memory() -> None:
    """Row groups of all partitions start at the same offsets, and those that are read first never change."""
    world = LayoutWorld()
    await world.begin(
        "bucket(16, _stream.key)", settings={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    )
    bucket: Callable[[bytes], Any] = BucketTransform(16).transform(BinaryType())
    unchanged = [key for number in range(4_000) if bucket(key := b"unchanged %d" % number) < 4][:600]
    updated = [key for number in range(400) if bucket(key := b"updated %d" % number) >= 4][:24]
    keys = [
        *unchanged[:4],
        *(key for n, other in enumerate(unchanged[4:]) for key in (other, updated[n % 24], updated[(n + 7) % 24])),
    ]
    await world.move([Row(offset, key, b"first", 5) for offset, key in enumerate(keys)])
    maintenance = world.maintenance(work=RewriteSettings(keys_max=300))
    for _ in range(12):
        world.clock.ms += 11 * MINUTE
        assert not (await maintenance.maintain()).failed
    left = [row.key or b"" for row in await world.rows()]
    assert sorted(left) == sorted({*unchanged, *updated})
