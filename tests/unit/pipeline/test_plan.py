"""What is moved now: oldest first, bounded, and quiet topics wait for one another."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakestream.metadata.claims import Medium
from lakestream.model import KiB, MiB, PartitionId
from lakestream.pipeline.plan import Backlog, PlanSettings, Spot, Target, chosen, moves

NOW = 1_000_000
SETTINGS = PlanSettings()


def spot(offset: int, size: int = 100, records: int = 1, name: str = "a", is_rows: bool = True) -> Spot:
    return Spot(offset, offset + records, offset * 1_000, offset * 1_000 + size, Medium.OBJECT, name, is_rows)


def backlog(topic: str, size: int = 100, waited_ms: int = 0, partition: int = 0) -> Backlog:
    return Backlog(PartitionId(topic, partition), 5, 6, [spot(5, size)], NOW - waited_ms)


def topics_of(found: Sequence[Backlog]) -> list[str]:
    return [one.partition.topic_id for one in found]


def test_the_oldest_come_first() -> None:
    backlogs = [backlog("new", MiB), backlog("old", MiB, 9_000), backlog("older", MiB, 10_000)]
    assert topics_of(chosen(backlogs, SETTINGS, NOW)) == ["older", "old", "new"]


def test_who_is_waited_for_comes_before_all() -> None:
    backlogs = [backlog("old", MiB, 9_000), backlog("asked")]
    assert topics_of(chosen(backlogs, SETTINGS, NOW, frozenset({"asked"}))) == ["asked", "old"]


def test_few_quiet_topics_are_moved_every_round() -> None:
    backlogs = [backlog(f"quiet {number}") for number in range(SETTINGS.quiet_topics)]
    assert len(chosen(backlogs, SETTINGS, NOW)) == SETTINGS.quiet_topics


@pytest.mark.parametrize(("waited_ms", "due"), [(0, 0), (300_000, 0), (320_000, SETTINGS.commits_max)])
def test_a_thousand_quiet_topics_wait(waited_ms: int, due: int) -> None:
    backlogs = [backlog(f"quiet {number}", waited_ms=waited_ms) for number in range(1_000)]
    assert len(chosen(backlogs, SETTINGS, NOW)) == due


def test_quiet_topics_do_not_hold_up_a_loud_one() -> None:
    backlogs = [backlog(f"quiet {number}") for number in range(1_000)]
    loud = backlog("loud", SETTINGS.quiet_bytes_max + 1)
    assert topics_of(chosen([*backlogs, loud], SETTINGS, NOW)) == ["loud"]


def test_all_logs_of_a_topic_go_together() -> None:
    """One commit moves them all, so one that is large takes its small ones along."""
    backlogs = [backlog("t", 10, partition=0), backlog("t", MiB, partition=1)]
    quiet = [backlog(f"quiet {number}") for number in range(1_000)]
    assert [one.partition.number for one in chosen([*quiet, *backlogs], SETTINGS, NOW)] == [0, 1]


def test_what_lies_together_is_read_together() -> None:
    spots = [spot(0), spot(1, name="b"), spot(2), spot(3, is_rows=False)]
    (move,) = moves([Backlog(PartitionId("t", 0), 0, 4, spots, NOW)], SETTINGS, lambda _: Target("there"))
    assert (move.start, move.end, move.location) == (0, 4, "there")
    assert [(piece.name, piece.base_offsets) for piece in move.pieces] == [("a", (0, 2)), ("b", (1,))]


def test_offsets_without_rows_are_moved_too() -> None:
    (move,) = moves([Backlog(PartitionId("t", 0), 7, 9, [spot(7, is_rows=False)], NOW)], SETTINGS, Target)
    assert (move.start, move.end, move.pieces) == (7, 9, ())


def test_logs_take_turns() -> None:
    settings = PlanSettings(move_bytes_max=100, round_bytes_max=500)
    far_behind = Backlog(PartitionId("t", 0), 0, 50, [spot(offset) for offset in range(50)], NOW)
    other = Backlog(PartitionId("t", 1), 0, 2, [spot(0), spot(1)], NOW)
    made = moves([far_behind, other], settings, Target)
    assert [(move.partition.number, move.start) for move in made] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]


@given(
    sizes=st.lists(st.lists(st.integers(1, 300 * KiB), max_size=30), min_size=1, max_size=5),
    move_bytes_max=st.integers(1, 400 * KiB),
    round_bytes_max=st.integers(1, 2 * MiB),
)
def test_moves_are_gapless_and_bounded(sizes: list[list[int]], move_bytes_max: int, round_bytes_max: int) -> None:
    settings = PlanSettings(move_bytes_max=move_bytes_max, round_bytes_max=round_bytes_max)
    backlogs = [
        Backlog(PartitionId("t", number), 0, len(own), [spot(at, size) for at, size in enumerate(own)], NOW)
        for number, own in enumerate(sizes)
    ]
    made = moves(backlogs, settings, Target)
    for one in backlogs:
        mine = [move for move in made if move.partition == one.partition]
        assert [move.start for move in mine] == [0, *(move.end for move in mine)][: len(mine)]
        covered = [offset for move in mine for piece in move.pieces for offset in piece.base_offsets]
        assert covered == list(range(mine[-1].end if mine else 0))
    largest = max((size for own in sizes for size in own), default=0)
    assert sum(move.size for move in made) <= round_bytes_max + move_bytes_max + largest
    if sum(map(sum, sizes)) <= round_bytes_max:
        assert sum(move.end - move.start for move in made) == sum(map(len, sizes))
