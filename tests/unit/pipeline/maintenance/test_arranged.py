"""Tables that are partitioned and sorted as their topics say: what is written anew stays in its partition, sorted."""

import io
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType, LongType
from tests.unit.pipeline.maintenance.tables import HOUR, MINUTE, Row, World, filed, some_rows

from lakestream.catalog.append import append
from lakestream.catalog.arranging import Arrangement, arrange, file_layout
from lakestream.catalog.data_files import MovedRange, data_location
from lakestream.catalog.listing import LiveFile
from lakestream.catalog.next_offsets import next_offsets
from lakestream.catalog.updates import AddSpec, SetDefaultSpec
from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.conform import conformed
from lakestream.data.table.parquet import ParquetSettings
from lakestream.data.table.splitting import write_files
from lakestream.pipeline.maintenance.files import laid_out
from lakestream.pipeline.maintenance.maintain import MaintenanceSettings
from lakestream.pipeline.maintenance.merging import MergeSettings
from lakestream.pipeline.maintenance.work import RewriteSettings
from lakestream.schemas.terms import partition_terms, sort_terms

EAGER = MaintenanceSettings(merge=MergeSettings(files_min=2, many=2, young_ms=0), look_ms=0)


class Arranged(World):
    async def begin(self, partition: str, sort: str = "", settings: Mapping[str, str] | None = None) -> None:
        await self.start(settings)
        await self.arrange(partition, sort)

    async def arrange(self, partition: str, sort: str = "") -> None:
        wanted = Arrangement(partition=partition_terms(partition), sort=sort_terms(sort))
        _, notice = await arrange(self.catalog, await self.table(), wanted)
        assert not notice

    async def move(self, rows: list[Row]) -> None:
        table = await self.table()
        location, start = table.metadata["location"], next_offsets(table.metadata).get(0, 0)
        # The rows as batches, by way of a file.
        ((plain, _),) = filed(rows, 0, location, self.ids)
        batches = pq.read_table(io.BytesIO(bytes(plain))).to_batches()
        made = []
        for body, file in write_files(
            laid_out([conformed(batch, PLAIN_COLUMNS) for batch in batches], PLAIN_COLUMNS),
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
        """By spec and values, the rows of each file."""
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
    world = Arranged()
    await world.begin("_stream.key")
    for start in range(0, 40, 10):
        await world.move(keyed(start, 10))
    await world.arrange("bucket(2, _stream.offset)")
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


async def test_what_is_merged_is_sorted_as_the_table_is() -> None:
    world = Arranged()
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
    world = Arranged()
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


async def test_rows_that_are_too_old_leave_and_the_others_stay_where_they_are() -> None:
    world = Arranged()
    await world.begin("_stream.key", settings={"lakestream.table.retention.ms": str(HOUR)})
    await world.move([*keyed(0, 20), *keyed(20, 10, 2 * HOUR)])
    world.clock.ms = 2 * HOUR + MINUTE
    await world.log_start(20)
    await world.maintenance(EAGER).maintain()
    found = await world.contents()
    assert {values for _, values in found} == {(b"k%d" % key,) for key in range(3)}
    assert await world.sorted_offsets() == list(range(20, 30))


async def test_what_others_have_partitioned_is_left_as_they_want_it() -> None:
    world = Arranged()
    await world.begin("_stream.key")
    foreign = {"fields": [{"name": "b", "transform": "bucket[4]", "source-id": 4}]}
    await world.catalog.change("a" * 32, lambda _: [AddSpec(foreign), SetDefaultSpec(-1)])
    for start in range(0, 40, 10):
        await world.append(some_rows(start, 10))
    await world.maintenance(EAGER).maintain()
    assert {spec for spec, _ in await world.contents()} == {0}
    assert len(await world.files()) == 1


async def test_compaction_comes_to_its_end_where_not_all_partitions_fit() -> None:
    """Row groups of all partitions begin at the same offsets, and those that are read first never change."""
    world = Arranged()
    await world.begin(
        "bucket(16, _stream.key)", settings={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    )
    bucket: Callable[[bytes], Any] = BucketTransform(16).transform(BinaryType())
    still = [key for number in range(4_000) if bucket(key := b"still %d" % number) < 4][:600]
    busy = [key for number in range(400) if bucket(key := b"busy %d" % number) >= 4][:24]
    keys = [
        *still[:4],
        *(key for n, other in enumerate(still[4:]) for key in (other, busy[n % 24], busy[(n + 7) % 24])),
    ]
    await world.move([Row(offset, key, b"first", 5) for offset, key in enumerate(keys)])
    maintenance = world.maintenance(work=RewriteSettings(keys_max=300))
    for _ in range(12):
        world.clock.ms += 11 * MINUTE
        assert not (await maintenance.maintain()).failed
    left = [row.key or b"" for row in await world.rows()]
    assert sorted(left) == sorted({*still, *busy})
