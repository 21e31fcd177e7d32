"""Key compaction against a plain model: what Kafka defines, for any keys, tombstones, rounds and pieces."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.pipeline.maintenance.tables import HOUR, MINUTE, TOPIC_ID, Row, World

from lakestream.catalog.listing import LiveFile
from lakestream.catalog.updates import RemoveProperties, SetProperties
from lakestream.pipeline.maintenance.compacting import (
    COMPACTED_AT,
    COMPACTED_TO,
    HORIZONS_MAX,
    Cleaned,
    CompactionSettings,
    Horizon,
    due,
)
from lakestream.pipeline.maintenance.tasks import Result, Task
from lakestream.pipeline.maintenance.work import RewriteSettings

NOW = 1_000_000_000_000
PLAIN = CompactionSettings(HOUR, 0, 2**63 - 1, 0.5)


def file(first: int, last: int, size: int = 100, newest_ms: int | None = 0, tombstones: int = 0) -> LiveFile:
    rows = last - first + 1
    name = f"s3://lake/{first}"
    return LiveFile(name, 0, True, 0, 0, first, last, newest_ms, newest_ms, rows, size, 1, tombstones, None)


# When


def test_a_partition_is_due_when_enough_of_it_is_dirty() -> None:
    files = [file(0, 9, 100), file(10, 19, 99)]
    assert due(files, Cleaned(10), PLAIN, NOW, {}) is None
    found = due([file(0, 9, 100), file(10, 19, 101)], Cleaned(10), PLAIN, NOW, {})
    assert found is not None
    assert (found.dirty_from, found.end, found.newest) == (10, 20, 19)
    assert due(files, Cleaned(20), PLAIN, NOW, {}) is None
    assert due([], Cleaned(), PLAIN, NOW, {}) is None


def test_a_file_that_is_partly_clean_counts_in_part() -> None:
    assert due([file(0, 99)], Cleaned(60), PLAIN, NOW, {}) is None
    assert due([file(0, 99)], Cleaned(40), PLAIN, NOW, {}) is not None


def test_what_waited_for_too_long_is_due_however_little_it_is() -> None:
    files = [file(0, 9, 1000), file(10, 10, 1, newest_ms=NOW - HOUR)]
    assert due(files, Cleaned(10), PLAIN, NOW, {}) is None
    assert due(files, Cleaned(10), PLAIN._replace(max_lag_ms=HOUR - 1), NOW, {}) is not None


def test_young_records_stay_as_they_are() -> None:
    files = [file(0, 9, newest_ms=NOW - HOUR), file(10, 19, newest_ms=NOW), file(20, 29, newest_ms=NOW - HOUR)]
    found = due(files, Cleaned(), PLAIN._replace(min_lag_ms=MINUTE), NOW, {})
    assert found is not None
    assert found.end == 10
    assert len(found.files) == 1
    found = due([file(0, 9, newest_ms=None)], Cleaned(), PLAIN._replace(min_lag_ms=MINUTE), NOW, {1: 5})
    assert found is None  # without times: by when it was committed


def test_deletions_whose_time_is_over_are_due_by_themselves() -> None:
    cleaned = Cleaned(21, (Horizon(10, NOW - HOUR), Horizon(20, NOW - HOUR + 1)))
    files = [file(0, 9, tombstones=1), file(10, 19, tombstones=1), file(20, 20)]
    found = due(files, cleaned, PLAIN, NOW, {})
    assert found is not None
    assert found.tombstones_before == 10
    assert due([file(0, 9), *files[1:]], cleaned, PLAIN, NOW, {}) is None


def test_a_deletion_that_is_the_newest_row_is_run_after_once() -> None:
    cleaned = Cleaned(10, (Horizon(10, NOW - HOUR),))
    found = due([file(0, 9, tombstones=2)], cleaned, PLAIN, NOW, {})
    assert found is not None
    assert found.tombstones_before == 9
    cleaned = cleaned.after(10, 9, NOW)
    assert cleaned.horizons == (Horizon(10, NOW - HOUR),)
    assert due([file(0, 9, tombstones=1)], cleaned, PLAIN, NOW, {}) is None
    assert due([file(0, 9, tombstones=1), file(10, 10, 1)], cleaned, PLAIN, NOW, {}) is not None


def test_there_is_a_pause_between_runs() -> None:
    assert due([file(0, 9)], Cleaned(1, (Horizon(1, NOW - MINUTE + 1),)), PLAIN, NOW, {}) is None


def test_horizons_are_few_and_never_too_early() -> None:
    cleaned = Cleaned()
    for number in range(1, 50):
        cleaned = cleaned.after(number, 0, number)
    assert len(cleaned.horizons) == HORIZONS_MAX
    assert cleaned.to == 49
    assert cleaned.horizons[0] == Horizon(1, 1)
    for now_ms in range(1, 50):  # deletions wait for the next that is kept
        assert now_ms - 5 < cleaned.tombstones_before(now_ms + HOUR, HOUR) <= now_ms
    assert cleaned.after(49, 40, 99).horizons[0] == Horizon(41, 41)


@pytest.mark.parametrize("every_ms", [MINUTE, 10 * MINUTE, 3 * HOUR])
def test_deletions_go_however_often_there_are_runs(every_ms: int) -> None:
    cleaned, retention_ms = Cleaned(), 24 * HOUR
    for now_ms in range(0, 10 * retention_ms, every_ms):
        cleaned = cleaned.after(now_ms + 1, cleaned.tombstones_before(now_ms, retention_ms), now_ms)
    assert cleaned.purged > 10 * retention_ms - 1.3 * retention_ms - 2 * every_ms


# What


@dataclass
class Model:
    """Kafka's rules on a list."""

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


async def played(steps: list[object], keys_max: int = 1_000) -> tuple[World, Model, list[Row]]:
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
async def test_the_table_is_what_kafka_would_have_left(steps: list[object]) -> None:
    world, model, _ = await played([*steps, 2 * MINUTE])
    assert await world.rows() == model.rows


@settings(max_examples=25)
@given(STEPS, st.integers(1, 6))
async def test_in_pieces_nothing_is_lost_and_nothing_comes_back(steps: list[object], keys_max: int) -> None:
    world, _, log = await played([*steps, 2 * MINUTE], keys_max=keys_max)
    rows = await world.rows()
    assert [row for row in log if row in set(rows)] == rows
    reached = json.loads((await world.properties()).get(COMPACTED_TO, "{}")).get("0", 0)
    clean = [row for row in rows if row.offset < reached]
    assert len({row.key for row in clean}) == len(clean)
    there = {row.offset for row in rows}
    for row in log:
        newer = [one for one in log if one.key == row.key and one.offset > row.offset]
        if row.offset not in there and not any(one.offset in there for one in newer):
            # The key is gone as a whole: its last word was that it is deleted, and nothing older is left of it.
            assert (newer or [row])[-1].value is None
            assert not any(one.key == row.key and one.offset < (newer or [row])[-1].offset for one in rows)
    if rows or log:
        assert rows[-1] == log[-1]


async def test_only_files_that_lose_rows_are_written_anew() -> None:
    world, _, _ = await played([[(1, False), (2, False)], [(3, False)], [(4, False)], [(1, False)]])
    before = {one.location for one in await world.files()}
    world.clock.ms += 2 * MINUTE
    done = await world.maintenance().maintain()
    assert (done.files_compacted, done.files_written, done.rows_removed) == (1, 1, 1)
    assert len({one.location for one in await world.files()} & before) == 3


async def test_without_its_property_everything_is_looked_at_again() -> None:
    world, model, _ = await played([[(1, False), (1, True)], 2 * MINUTE, [(2, False), (1, False)], 2 * MINUTE])
    await world.catalog.commit(TOPIC_ID, [], [RemoveProperties([COMPACTED_TO, COMPACTED_AT])])
    world.clock.ms += 20 * MINUTE
    assert (await world.maintenance().maintain()).rows_removed == 0
    assert json.loads((await world.properties())[COMPACTED_TO]) == {"0": 4}
    assert await world.rows() == model.rows


async def test_a_run_that_was_overtaken_says_nothing_of_what_is_clean() -> None:
    """It looked at a part only, because the rest was clean; now nobody knows that any more."""
    world, _, _ = await played([[(1, False), (1, False)], 2 * MINUTE, [(2, False), (1, False)]])
    maintenance = world.maintenance()
    run = world.job.run

    async def overtaken(tasks: Sequence[Task]) -> list[Result]:
        await world.catalog.commit(TOPIC_ID, [], [RemoveProperties([COMPACTED_TO, COMPACTED_AT])])
        return await run(tasks)

    world.job.run = overtaken  # type: ignore[method-assign]
    world.clock.ms += 2 * MINUTE
    before, keys = await world.rows(), await world.keys()
    await maintenance.maintain()
    assert COMPACTED_TO not in await world.properties()
    assert await world.rows() == before
    assert {key for key in await world.keys() if key.endswith(".parquet")} <= keys


@pytest.mark.parametrize("value", ["", "[]", '{"0": "x"}', '{"a": 1}'])
async def test_a_property_that_somebody_spoiled_is_not_believed(value: str) -> None:

    world, _, _ = await played([[(1, False), (1, False)]])
    await world.catalog.commit(TOPIC_ID, [], [SetProperties({COMPACTED_TO: value})])
    world.clock.ms += 20 * MINUTE
    assert (await world.maintenance().maintain()).rows_removed == 1


async def test_keys_are_compared_whole_and_records_without_one_stay() -> None:
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
