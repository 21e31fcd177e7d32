"""Tests maintenance of tables in memory: merges, row retention, snapshot expiration, orphan files."""

import pytest
from tests.harness.catalog.maintenance_tables import HOUR, MINUTE, TOPIC_ID, Row, World, some_rows

from lakestream.catalog.table_metadata.updates import SetProperties, SetSnapshotRef, SetStatistics
from lakestream.catalog.topic_table.offsets import ACCEPT_ROLLBACK, next_offsets
from lakestream.pipeline.maintenance import service
from lakestream.pipeline.maintenance.service import MaintenanceSettings
from lakestream.pipeline.maintenance.small_files import MergeSettings

DAY = 24 * HOUR


@pytest.fixture
async def world() -> World:
    made = World()
    await made.start()
    return made


async def fill(world: World, commits: int, partition: int = 0, start: int = 0) -> list[Row]:
    rows: list[Row] = []
    for number in range(commits):
        some = some_rows(start + number * 3, 3, world.clock.ms)
        await world.append(some, partition)
        rows += some
        world.clock.ms += 5_000
    return rows


async def test_small_files_are_merged_into_one(world: World) -> None:
    rows = await fill(world, 20)
    world.clock.ms += MINUTE
    done = await world.maintenance().maintain()
    assert (done.files_merged, done.files_written, done.failed) == (20, 1, 0)
    assert len(await world.files()) == 1
    assert await world.rows() == rows
    table = await world.table()
    assert next_offsets(table.metadata) == {0: 60}
    summary = table.metadata["snapshots"][-1]["summary"]
    assert summary["operation"] == "replace"
    assert (summary["total-records"], summary["total-data-files"]) == ("60", "1")


async def test_appends_continue_after_a_merge(world: World) -> None:
    rows = await fill(world, 10)
    world.clock.ms += MINUTE
    await world.maintenance().maintain()
    rows += await fill(world, 40, start=30)
    assert await world.rows() == rows
    world.clock.ms += MINUTE
    await world.maintenance().maintain()
    assert await world.rows() == rows
    assert len(await world.files()) < 5


async def test_young_files_are_merged_only_when_there_are_many(world: World) -> None:
    for number in range(10):
        await world.append(some_rows(number, 1))
    assert (await world.maintenance().maintain()).files_merged == 0
    for number in range(10, 40):
        await world.append(some_rows(number, 1))
    assert (await world.maintenance().maintain()).files_merged == 40


async def test_partitions_are_merged_separately() -> None:
    world = World()
    await world.start(partitions=2)
    rows = {number: await fill(world, 9, partition=number) for number in (0, 1)}
    world.clock.ms += MINUTE
    assert (await world.maintenance().maintain()).files_written == 2
    assert {number: await world.rows(number) for number in (0, 1)} == rows


async def test_table_is_visited_when_it_changed_or_after_the_idle_time(world: World) -> None:
    await fill(world, 3)
    maintenance = world.maintenance()
    assert (await maintenance.maintain()).tables == 1
    world.clock.ms += 2 * MINUTE
    assert (await maintenance.maintain()).tables == 0
    await world.append(some_rows(9, 1))
    assert (await maintenance.maintain()).tables == 1
    world.clock.ms += 10 * MINUTE
    assert (await maintenance.maintain()).tables == 1


async def test_expired_snapshots_are_removed_with_only_their_own_files(world: World) -> None:
    rows = await fill(world, 20)
    world.clock.ms += MINUTE
    maintenance = world.maintenance()
    await maintenance.maintain()
    before = await world.keys()
    world.clock.ms += 2 * HOUR
    done = await maintenance.maintain()
    assert done.snapshots_expired == 20  # all except that of the merge
    table = await world.table()
    assert len(table.metadata["snapshots"]) == 1
    assert await world.rows() == rows
    assert done.files_removed > 40
    left = await world.keys()
    assert left < before | left
    assert sum(key.endswith(".parquet") for key in left) == 1
    await world.append(some_rows(60, 3))
    assert len(await world.rows()) == 63


async def test_files_in_merged_manifests_stay_when_old_snapshots_expire(world: World) -> None:
    rows = await fill(world, 40)  # appends merge manifests, but no files
    world.clock.ms += 2 * HOUR
    done = await world.maintenance(MaintenanceSettings(merge=MergeSettings(files_min=1_000, many=1_000))).maintain()
    assert done.snapshots_expired == 39
    assert await world.rows() == rows


async def test_old_snapshot_stays_when_it_was_main_a_minute_ago(world: World) -> None:
    await fill(world, 1)
    world.clock.ms += 3 * DAY
    await world.append(some_rows(3, 1))
    world.clock.ms += MINUTE
    assert (await world.maintenance().maintain()).snapshots_expired == 0
    world.clock.ms += 11 * MINUTE
    assert (await world.maintenance().maintain()).snapshots_expired == 1


async def test_tagged_snapshot_and_its_files_are_kept(world: World) -> None:
    await fill(world, 10)
    table = await world.table()
    tagged = table.metadata["snapshots"][4]
    await world.catalog.commit(TOPIC_ID, [], [SetSnapshotRef("keep", "tag", tagged["snapshot-id"])])
    world.clock.ms += 2 * HOUR
    maintenance = world.maintenance()
    await maintenance.maintain()
    world.clock.ms += 2 * HOUR
    await maintenance.maintain()
    kept = {one["snapshot-id"] for one in (await world.table()).metadata["snapshots"]}
    assert tagged["snapshot-id"] in kept
    assert len(kept) == 2
    assert sum(key.endswith(".parquet") for key in await world.keys()) == 1 + 5  # the merged file, and those of the tag


async def test_only_orphan_files_are_removed_after_three_days(world: World) -> None:
    rows = await fill(world, 3)
    location = (await world.table()).metadata["location"]
    orphan = f"{location}/data/partition=0/left.parquet"
    await world.objects.create(world.catalog.locations.key_of(orphan), [b"left by a crash"])
    await world.objects.create("tables/default/other-table/data/x.parquet", [b"not ours"])
    maintenance = world.maintenance()
    assert (await maintenance.maintain()).orphans_removed == 0
    world.clock.ms += 2 * DAY
    assert (await maintenance.maintain()).orphans_removed == 0
    world.clock.ms += 2 * DAY
    assert (await maintenance.maintain()).orphans_removed == 1
    assert "tables/default/other-table/data/x.parquet" in await world.keys()
    assert await world.rows() == rows
    await world.append(some_rows(9, 1))


async def test_statistics_file_is_kept_until_its_snapshot_expires(world: World) -> None:
    await fill(world, 1)
    table = await world.table()
    place = f"{table.metadata['location']}/metadata/counts.puffin"
    await world.objects.create(world.catalog.locations.key_of(place), [b"counts"])
    statistics = {"snapshot-id": table.metadata["current-snapshot-id"], "statistics-path": place}
    statistics |= {"file-size-in-bytes": 6, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    await world.catalog.commit(TOPIC_ID, [], [SetStatistics(statistics)])
    world.clock.ms += 9 * DAY
    maintenance = world.maintenance()
    assert (await maintenance.maintain()).orphans_removed == 0
    await world.append(some_rows(3, 1))
    world.clock.ms += HOUR
    assert (await maintenance.maintain()).snapshots_expired == 1
    assert world.catalog.locations.key_of(place) not in await world.keys()  # deleted with its snapshot


async def test_rows_are_removed_when_they_are_old_and_before_the_log_start() -> None:
    world = World()
    await world.start({"lakestream.table.retention.ms": str(DAY)})
    first = world.clock.ms
    await world.append(some_rows(0, 10, first))
    await world.append(some_rows(10, 10, first + 3 * HOUR))
    world.clock.ms = first + 2 * DAY
    maintenance = world.maintenance()
    assert (await maintenance.maintain()).rows_removed == 0  # the log still has the records
    await world.log_start(10)
    world.clock.ms += HOUR
    done = await maintenance.maintain()
    assert (done.files_dropped, done.rows_removed) == (1, 10)
    assert [row.offset for row in await world.rows()] == list(range(10, 20))
    assert next_offsets((await world.table()).metadata) == {0: 20}


async def test_file_at_the_border_is_rewritten_when_half_of_it_is_expired() -> None:
    world = World()
    await world.start({"lakestream.table.retention.ms": str(DAY)})
    first = world.clock.ms
    rows = [Row(offset, b"k", b"v", first + offset * HOUR) for offset in range(10)]
    await world.append(rows)
    world.clock.ms = first + DAY + 4 * HOUR
    await world.log_start(10)
    maintenance = world.maintenance()
    assert (await maintenance.maintain()).rows_removed == 0
    world.clock.ms = first + DAY + 6 * HOUR
    assert (await maintenance.maintain()).rows_removed == 6
    assert await world.rows() == rows[6:]


async def test_nothing_is_removed_when_the_table_was_rolled_back(world: World) -> None:
    await fill(world, 20)
    older = (await world.table()).metadata["snapshots"][3]["snapshot-id"]
    await world.catalog.commit(TOPIC_ID, [], [SetSnapshotRef("main", "branch", older)])
    world.clock.ms += 10 * DAY
    before = await world.keys()
    done = await world.maintenance().maintain()
    assert done.failed == 1
    assert await world.keys() == before
    assert ACCEPT_ROLLBACK not in await world.properties()


async def test_no_file_is_deleted_when_gc_is_disabled(world: World) -> None:
    await world.catalog.commit(TOPIC_ID, [], [SetProperties({"gc.enabled": "false"})])
    await fill(world, 10)
    before = await world.keys()
    for _ in range(4):
        world.clock.ms += 2 * DAY
        done = await world.maintenance().maintain()
        assert (done.snapshots_expired, done.files_removed, done.orphans_removed, done.failed) == (0, 0, 0, 0)
    assert before <= await world.keys()
    await world.catalog.commit(TOPIC_ID, [], [SetProperties({"gc.enabled": "true"})])
    assert (await world.maintenance().maintain()).files_removed > 0


async def test_bug_in_one_step_does_not_stop_the_visit(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise TypeError("unhashable")

    await fill(world, 20)
    world.clock.ms += MINUTE
    monkeypatch.setattr(service, "expire", broken)
    done = await world.maintenance().maintain()
    assert (done.files_merged, done.failed) == (20, 1)
    assert "maintenance.failed" in caplog.text
