"""Tests the selection of records to move: oldest first, limited in size, and quiet topics wait longer."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.metadata.claims import Medium
from lakestream.model import KiB, MiB, PartitionId
from lakestream.pipeline.plan import Backlog, LogBatch, PlanSettings, Target, moves, select_backlogs

NOW = 1_000_000
SETTINGS = PlanSettings()


def batch(offset: int, size: int = 100, records: int = 1, name: str = "a", is_rows: bool = True) -> LogBatch:
    return LogBatch(offset, offset + records, offset * 1_000, offset * 1_000 + size, Medium.OBJECT, name, is_rows)


def backlog(topic: str, size: int = 100, waited_ms: int = 0, partition: int = 0) -> Backlog:
    return Backlog(PartitionId(topic, partition), 5, 6, [batch(5, size)], NOW - waited_ms)


def topics_of(found: Sequence[Backlog]) -> list[str]:
    return [one.partition.topic_id for one in found]


def test_oldest_backlogs_are_first() -> None:
    backlogs = [backlog("new", MiB), backlog("old", MiB, 9_000), backlog("older", MiB, 10_000)]
    assert topics_of(select_backlogs(backlogs, SETTINGS, NOW)) == ["older", "old", "new"]


def test_requested_topics_are_before_older_ones() -> None:
    backlogs = [backlog("old", MiB, 9_000), backlog("requested")]
    assert topics_of(select_backlogs(backlogs, SETTINGS, NOW, frozenset({"requested"}))) == ["requested", "old"]


def test_few_quiet_topics_are_moved_in_every_micro_batch() -> None:
    backlogs = [backlog(f"quiet {number}") for number in range(SETTINGS.quiet_topics)]
    assert len(select_backlogs(backlogs, SETTINGS, NOW)) == SETTINGS.quiet_topics


@pytest.mark.parametrize(("waited_ms", "due"), [(0, 0), (300_000, 0), (320_000, SETTINGS.commits_max)])
def test_a_thousand_quiet_topics_are_moved_only_when_old_enough(waited_ms: int, due: int) -> None:
    backlogs = [backlog(f"quiet {number}", waited_ms=waited_ms) for number in range(1_000)]
    assert len(select_backlogs(backlogs, SETTINGS, NOW)) == due


def test_busy_topic_is_moved_before_a_thousand_quiet_ones() -> None:
    backlogs = [backlog(f"quiet {number}") for number in range(1_000)]
    busy = backlog("busy", SETTINGS.quiet_bytes_max + 1)
    assert topics_of(select_backlogs([*backlogs, busy], SETTINGS, NOW)) == ["busy"]


def test_all_logs_of_a_selected_topic_are_moved() -> None:
    """One commit has all of them, so a large backlog includes the small ones of its topic."""
    backlogs = [backlog("t", 10, partition=0), backlog("t", MiB, partition=1)]
    quiet = [backlog(f"quiet {number}") for number in range(1_000)]
    assert [one.partition.number for one in select_backlogs([*quiet, *backlogs], SETTINGS, NOW)] == [0, 1]


def test_move_has_one_piece_per_object() -> None:
    batches = [batch(0), batch(1, name="b"), batch(2), batch(3, is_rows=False)]
    (move,) = moves([Backlog(PartitionId("t", 0), 0, 4, batches, NOW)], SETTINGS, lambda _: Target("location"))
    assert (move.start, move.end, move.location) == (0, 4, "location")
    assert [(piece.name, piece.base_offsets) for piece in move.pieces] == [("a", (0, 2)), ("b", (1,))]


def test_offsets_without_rows_are_moved() -> None:
    (move,) = moves([Backlog(PartitionId("t", 0), 7, 9, [batch(7, is_rows=False)], NOW)], SETTINGS, Target)
    assert (move.start, move.end, move.pieces) == (7, 9, ())


def test_moves_alternate_between_logs() -> None:
    settings = PlanSettings(move_bytes_max=100, round_bytes_max=500)
    far_behind = Backlog(PartitionId("t", 0), 0, 50, [batch(offset) for offset in range(50)], NOW)
    other = Backlog(PartitionId("t", 1), 0, 2, [batch(0), batch(1)], NOW)
    planned = moves([far_behind, other], settings, Target)
    assert [(move.partition.number, move.start) for move in planned] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


@given(
    sizes=st.lists(st.lists(st.integers(1, 300 * KiB), max_size=30), min_size=1, max_size=5),
    move_bytes_max=st.integers(1, 400 * KiB),
    round_bytes_max=st.integers(1, 2 * MiB),
)
def test_moves_have_no_gaps_and_are_limited_in_size(
    sizes: list[list[int]], move_bytes_max: int, round_bytes_max: int
) -> None:
    settings = PlanSettings(move_bytes_max=move_bytes_max, round_bytes_max=round_bytes_max)
    backlogs = [
        Backlog(PartitionId("t", number), 0, len(own), [batch(at, size) for at, size in enumerate(own)], NOW)
        for number, own in enumerate(sizes)
    ]
    planned = moves(backlogs, settings, Target)
    for one in backlogs:
        mine = [move for move in planned if move.partition == one.partition]
        assert [move.start for move in mine] == [0, *(move.end for move in mine)][: len(mine)]
        covered = [offset for move in mine for piece in move.pieces for offset in piece.base_offsets]
        assert covered == list(range(mine[-1].end if mine else 0))
    largest = max((size for own in sizes for size in own), default=0)
    assert sum(move.size for move in planned) <= round_bytes_max + move_bytes_max + largest
    if sum(map(sum, sizes)) <= round_bytes_max:
        assert sum(move.end - move.start for move in planned) == sum(map(len, sizes))
