"""Tests key compaction against a model of Kafka's rules, for any keys, tombstones, micro-batches and runs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.catalog.maintenance_tables import HOUR, MINUTE, TOPIC_ID, Row, World

from lakestream.catalog.table_metadata.updates import RemoveProperties, SetProperties
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.pipeline.maintenance.key_compaction import (
    COMPACTED_AT,
    COMPACTED_TO,
    HORIZONS_MAX,
    Cleaned,
    CompactionSettings,
    TombstoneHorizon,
    plan_compaction,
)
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.maintenance.worker import RewriteSettings

NOW = 1_000_000_000_000
PLAIN = CompactionSettings(HOUR, 0, 2**63 - 1, 0.5)


def file(first: int, last: int, size: int = 100, newest_ms: int | None = 0, tombstones: int = 0) -> LiveFile:
    rows = last - first + 1
    name = f"s3://lake/{first}"
    return LiveFile(name, 0, True, 0, 0, first, last, newest_ms, newest_ms, rows, size, 1, tombstones, None)


# Planning


def test_partition_is_due_when_its_dirty_ratio_is_reached() -> None:
    files = [file(0, 9, 100), file(10, 19, 99)]
    assert plan_compaction(files, Cleaned(10), PLAIN, NOW, {}) is None
    found = plan_compaction([file(0, 9, 100), file(10, 19, 101)], Cleaned(10), PLAIN, NOW, {})
    assert found is not None
    assert (found.dirty_from, found.end, found.newest) == (10, 20, 19)
    assert plan_compaction(files, Cleaned(20), PLAIN, NOW, {}) is None
    assert plan_compaction([], Cleaned(), PLAIN, NOW, {}) is None


def test_partly_clean_file_counts_by_its_dirty_share() -> None:
    assert plan_compaction([file(0, 99)], Cleaned(60), PLAIN, NOW, {}) is None
    assert plan_compaction([file(0, 99)], Cleaned(40), PLAIN, NOW, {}) is not None


def test_partition_is_due_after_the_longest_lag_however_small_its_dirty_range_is() -> None:
    files = [file(0, 9, 1000), file(10, 10, 1, newest_ms=NOW - HOUR)]
    assert plan_compaction(files, Cleaned(10), PLAIN, NOW, {}) is None
    assert plan_compaction(files, Cleaned(10), PLAIN._replace(max_lag_ms=HOUR - 1), NOW, {}) is not None


def test_files_younger_than_the_minimum_lag_are_not_compacted() -> None:
    files = [file(0, 9, newest_ms=NOW - HOUR), file(10, 19, newest_ms=NOW), file(20, 29, newest_ms=NOW - HOUR)]
    found = plan_compaction(files, Cleaned(), PLAIN._replace(min_lag_ms=MINUTE), NOW, {})
    assert found is not None
    assert found.end == 10
    assert len(found.files) == 1
    found = plan_compaction([file(0, 9, newest_ms=None)], Cleaned(), PLAIN._replace(min_lag_ms=MINUTE), NOW, {1: 5})
    assert found is None  # without timestamps, the time of the commit counts


def test_partition_is_due_when_tombstones_are_older_than_the_retention() -> None:
    cleaned = Cleaned(21, (TombstoneHorizon(10, NOW - HOUR), TombstoneHorizon(20, NOW - HOUR + 1)))
    files = [file(0, 9, tombstones=1), file(10, 19, tombstones=1), file(20, 20)]
    found = plan_compaction(files, cleaned, PLAIN, NOW, {})
    assert found is not None
    assert found.tombstones_before == 10
    assert plan_compaction([file(0, 9), *files[1:]], cleaned, PLAIN, NOW, {}) is None


def test_tombstone_that_is_the_newest_row_causes_one_run_only() -> None:
    cleaned = Cleaned(10, (TombstoneHorizon(10, NOW - HOUR),))
    found = plan_compaction([file(0, 9, tombstones=2)], cleaned, PLAIN, NOW, {})
    assert found is not None
    assert found.tombstones_before == 9
    cleaned = cleaned.after(10, 9, NOW)
    assert cleaned.horizons == (TombstoneHorizon(10, NOW - HOUR),)
    assert plan_compaction([file(0, 9, tombstones=1)], cleaned, PLAIN, NOW, {}) is None
    assert plan_compaction([file(0, 9, tombstones=1), file(10, 10, 1)], cleaned, PLAIN, NOW, {}) is not None


def test_partition_is_not_due_during_the_pause_after_a_run() -> None:
    assert plan_compaction([file(0, 9)], Cleaned(1, (TombstoneHorizon(1, NOW - MINUTE + 1),)), PLAIN, NOW, {}) is None


def test_horizons_are_limited_and_never_too_early() -> None:
    cleaned = Cleaned()
    for number in range(1, 50):
        cleaned = cleaned.after(number, 0, number)
    assert len(cleaned.horizons) == HORIZONS_MAX
    assert cleaned.to == 49
    assert cleaned.horizons[0] == TombstoneHorizon(1, 1)
    for now_ms in range(1, 50):  # tombstones wait for the next horizon
        assert now_ms - 5 < cleaned.tombstones_before(now_ms + HOUR, HOUR) <= now_ms
    assert cleaned.after(49, 40, 99).horizons[0] == TombstoneHorizon(41, 41)


@pytest.mark.parametrize("every_ms", [MINUTE, 10 * MINUTE, 3 * HOUR])
def test_tombstones_are_removed_however_often_runs_are(every_ms: int) -> None:
    cleaned, retention_ms = Cleaned(), 24 * HOUR
    for now_ms in range(0, 10 * retention_ms, every_ms):
        cleaned = cleaned.after(now_ms + 1, cleaned.tombstones_before(now_ms, retention_ms), now_ms)
    assert cleaned.purged > 10 * retention_ms - 1.3 * retention_ms - 2 * every_ms


# Compacted tables


@dataclass
class Model:
    """Kafka's rules, applied to a list."""

    retention_ms: int
    rows: list[Row] = field(default_factory=list)
    clean: list[tuple[int, int]] = field(default_factory=list)

    def compact(self, now_ms: int) -> None:
        before = max([offset for offset, at_ms in self.clean if at_ms + self.retention_ms <= now_ms], default=0)
        last = {row.key: row.offset for row in self.rows}
        newest = self.rows[-1].offset
        self.rows = [
            row
            for row in self.rows
            if row.offset == newest or (last[row.key] == row.offset and not (row.value is None and row.offset < before))
        ]
        if not self.clean or newest + 1 > self.clean[-1][0]:
            self.clean.append((newest + 1, now_ms))


ROWS = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=8)
STEPS = st.lists(st.one_of(ROWS, st.sampled_from([2 * MINUTE, 2 * HOUR])), min_size=1, max_size=10)


async def run_steps(steps: list[object], keys_max: int = 1_000) -> tuple[World, Model, list[Row]]:
    world = World()
    await world.start({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": str(HOUR)})
    maintenance, model, log = world.maintenance(work=RewriteSettings(keys_max=keys_max)), Model(HOUR), list[Row]()
    for step in steps:
        if isinstance(step, list):
            made = [
                Row(len(log) + number, b"key %d" % key, None if is_gone else b"at %d" % (len(log) + number), 5)
                for number, (key, is_gone) in enumerate(step)
            ]
            log += made
            model.rows += made
            await world.append(made)
        elif isinstance(step, int):
            world.clock.ms += step
            if log:
                done = await maintenance.maintain()
                assert done.failed == 0
                model.compact(world.clock.ms)
    return world, model, log


@settings(max_examples=25)
@given(STEPS)
async def test_compacted_table_equals_the_model(steps: list[object]) -> None:
    world, model, _ = await run_steps([*steps, 2 * MINUTE])
    assert await world.rows() == model.rows


@settings(max_examples=25)
@given(STEPS, st.integers(1, 6))
async def test_compaction_in_several_runs_loses_and_restores_no_key(steps: list[object], keys_max: int) -> None:
    world, _, log = await run_steps([*steps, 2 * MINUTE], keys_max=keys_max)
    rows = await world.rows()
    assert [row for row in log if row in set(rows)] == rows
    reached = json.loads((await world.properties()).get(COMPACTED_TO, "{}")).get("0", 0)
    clean = [row for row in rows if row.offset < reached]
    assert len({row.key for row in clean}) == len(clean)
    present = {row.offset for row in rows}
    for row in log:
        newer = [one for one in log if one.key == row.key and one.offset > row.offset]
        if row.offset not in present and not any(one.offset in present for one in newer):
            # No row of the key is left: its last record was a tombstone, and no older row may be left either.
            assert (newer or [row])[-1].value is None
            assert not any(one.key == row.key and one.offset < (newer or [row])[-1].offset for one in rows)
    if rows or log:
        assert rows[-1] == log[-1]


async def test_only_files_that_lose_rows_are_rewritten() -> None:
    world, _, _ = await run_steps([[(1, False), (2, False)], [(3, False)], [(4, False)], [(1, False)]])
    before = {one.location for one in await world.files()}
    world.clock.ms += 2 * MINUTE
    done = await world.maintenance().maintain()
    assert (done.files_compacted, done.files_written, done.rows_removed) == (1, 1, 1)
    assert len({one.location for one in await world.files()} & before) == 3


async def test_all_files_are_checked_again_when_the_properties_are_removed() -> None:
    world, model, _ = await run_steps([[(1, False), (1, True)], 2 * MINUTE, [(2, False), (1, False)], 2 * MINUTE])
    await world.catalog.commit(TOPIC_ID, [], [RemoveProperties([COMPACTED_TO, COMPACTED_AT])])
    world.clock.ms += 20 * MINUTE
    assert (await world.maintenance().maintain()).rows_removed == 0
    assert json.loads((await world.properties())[COMPACTED_TO]) == {"0": 4}
    assert await world.rows() == model.rows


async def test_run_is_not_committed_when_the_clean_offset_was_removed_concurrently() -> None:
    """The run read only the dirty range; without the property it is unknown whether the rest is clean."""
    world, _, _ = await run_steps([[(1, False), (1, False)], 2 * MINUTE, [(2, False), (1, False)]])
    maintenance = world.maintenance()
    run = world.job.run

    async def properties_removed(tasks: Sequence[Task]) -> list[Result]:
        await world.catalog.commit(TOPIC_ID, [], [RemoveProperties([COMPACTED_TO, COMPACTED_AT])])
        return await run(tasks)

    world.job.run = properties_removed  # type: ignore[method-assign]
    world.clock.ms += 2 * MINUTE
    before, keys = await world.rows(), await world.keys()
    await maintenance.maintain()
    assert COMPACTED_TO not in await world.properties()
    assert await world.rows() == before
    assert {key for key in await world.keys() if key.endswith(".parquet")} <= keys


@pytest.mark.parametrize("value", ["", "[]", '{"0": "x"}', '{"a": 1}'])
async def test_invalid_property_counts_as_missing(value: str) -> None:

    world, _, _ = await run_steps([[(1, False), (1, False)]])
    await world.catalog.commit(TOPIC_ID, [], [SetProperties({COMPACTED_TO: value})])
    world.clock.ms += 20 * MINUTE
    assert (await world.maintenance().maintain()).rows_removed == 1


async def test_keys_are_compared_completely_and_records_without_a_key_stay() -> None:
    world = World()
    await world.start({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    rows = [
        Row(0, b"", b"empty"),
        Row(1, None, b"none"),
        Row(2, b"\x00", b"zero"),
        Row(3, b"a" * 300, b"long"),
        Row(4, b"a" * 301, b"longer"),
        Row(5, None, b"none"),
        Row(6, b"", b"empty again"),
    ]
    await world.append(rows)
    world.clock.ms += 2 * MINUTE
    assert (await world.maintenance().maintain()).rows_removed == 1
    assert await world.rows() == rows[1:]
