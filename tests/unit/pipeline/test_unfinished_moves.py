"""Tests what failed moves leave: smaller moves for their logs, and files for one more attempt."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.log.brokers import HandClock

from lakestream.metadata.claims import Medium
from lakestream.model import PartitionId
from lakestream.pipeline.plan import Backlog, LogBatch, PlanSettings, Target, moves
from lakestream.pipeline.tasks import Move, MoveResult
from lakestream.pipeline.unfinished_moves import STORED_MS_MAX, UnfinishedMoves

LOG, OTHER = PartitionId("t", 0), PartitionId("t", 1)
SETTINGS = PlanSettings(move_bytes_max=1_000, move_bytes_min=200)
SIZE = 100
HERE = Target("here")


def backlog(partition: PartitionId, start: int, end: int) -> Backlog:
    batches = [
        LogBatch(at, at + 1, at * 1_000, at * 1_000 + SIZE, Medium.OBJECT, "a", True) for at in range(start, end)
    ]
    return Backlog(partition, start, end, batches, 0)


def planned(unfinished: UnfinishedMoves, *backlogs: Backlog, target: Target = HERE) -> list[Move]:
    return moves(backlogs, SETTINGS, lambda _: target, retries=unfinished.retries())


def ranges(found: Sequence[Move]) -> list[tuple[int, int, int]]:
    return [(move.partition.number, move.start, move.end) for move in found]


def results(found: Sequence[Move]) -> list[MoveResult]:
    return [MoveResult(move, (), move.end - move.start) for move in found]


def unfinished_moves() -> tuple[UnfinishedMoves, HandClock]:
    clock = HandClock()
    return UnfinishedMoves(SETTINGS, clock), clock


def test_only_the_log_of_a_failed_move_gets_one_smaller_move() -> None:
    unfinished, _ = unfinished_moves()
    unfinished.note_failed(LOG, 1_000)
    logs = backlog(LOG, 0, 40), backlog(OTHER, 0, 20)
    assert ranges(planned(unfinished, *logs)) == [(0, 0, 5), (1, 0, 10), (1, 10, 20)]
    unfinished.note_failed(LOG, 500)
    assert ranges(planned(unfinished, *logs))[0] == (0, 0, 3)
    for _ in range(5):
        unfinished.note_failed(LOG, 200)
    assert ranges(planned(unfinished, *logs))[0] == (0, 0, 2)


def test_size_of_moves_grows_with_each_commit_until_the_limit_is_gone() -> None:
    unfinished, _ = unfinished_moves()
    unfinished.note_failed(LOG, 400)
    sizes = []
    while LOG in unfinished.retries().limits:
        sizes.append(unfinished.retries().limits[LOG])
        unfinished.note_committed([LOG, LOG, OTHER])
    assert sizes == [200, 250, 312, 390, 487, 608, 760, 950]
    assert len(planned(unfinished, backlog(LOG, 0, 40))) == 4


def test_stored_moves_are_planned_as_they_are_besides_one_new_move() -> None:
    unfinished, _ = unfinished_moves()
    _, *behind = planned(unfinished, backlog(LOG, 0, 40))
    assert unfinished.note_failed(LOG, 1_000, results(behind)) == []
    found = planned(unfinished, backlog(LOG, 0, 45))
    assert ranges(found) == [(0, 0, 5)]
    assert unfinished.take(found) == ([], [])
    found = planned(unfinished, backlog(LOG, 5, 45))
    assert ranges(found) == [(0, 5, 10), (0, 10, 20), (0, 20, 30), (0, 30, 40)]
    assert unfinished.take(found) == (results(behind), [])


def test_stored_files_are_removed_when_the_second_attempt_fails() -> None:
    unfinished, _ = unfinished_moves()
    stored = results(planned(unfinished, backlog(LOG, 0, 20)))
    assert unfinished.note_failed(LOG, 1_000, stored) == []
    assert unfinished.take(planned(unfinished, backlog(LOG, 0, 20))) == (stored, [])
    assert unfinished.note_failed(LOG, 1_000, stored) == stored
    assert ranges(planned(unfinished, backlog(LOG, 0, 20))) == [(0, 0, 3)]


def test_files_behind_a_move_are_removed_when_it_fails_again() -> None:
    unfinished, _ = unfinished_moves()
    _, behind = planned(unfinished, backlog(LOG, 0, 20))
    assert unfinished.note_failed(LOG, 1_000, results([behind])) == []
    assert unfinished.take(planned(unfinished, backlog(LOG, 0, 20))) == ([], [])
    assert unfinished.note_failed(LOG, 500) == results([behind])


def test_stored_files_are_stale_when_the_table_changed_or_another_driver_moved_them() -> None:
    for later, target in ((backlog(LOG, 0, 20), Target("elsewhere")), (backlog(LOG, 3, 20), HERE)):
        unfinished, _ = unfinished_moves()
        stored = results(planned(unfinished, backlog(LOG, 0, 5)))
        unfinished.note_failed(LOG, 1_000, stored)
        assert unfinished.take(planned(unfinished, later, target=target)) == ([], stored)


def test_stored_files_are_stale_after_ten_minutes() -> None:
    unfinished, clock = unfinished_moves()
    stored = results(planned(unfinished, backlog(LOG, 0, 5)))
    unfinished.note_failed(LOG, 1_000, stored)
    clock.ms += STORED_MS_MAX
    assert unfinished.take(planned(unfinished, backlog(LOG, 0, 5))) == ([], stored)
    assert unfinished.take([]) == ([], [])


def test_limits_of_deleted_topics_are_forgotten() -> None:
    unfinished, _ = unfinished_moves()
    unfinished.note_failed(LOG, 1_000)
    unfinished.forget_deleted(["t"])
    assert unfinished.retries().limits
    unfinished.forget_deleted([])
    assert not unfinished.retries().limits


@given(
    end=st.integers(1, 60),
    borders=st.lists(st.integers(0, 70), min_size=2, max_size=6, unique=True).map(sorted),
    limit=st.integers(1, 2_000),
)
def test_planned_moves_have_no_gaps_whatever_is_stored(end: int, borders: list[int], limit: int) -> None:
    unfinished, _ = unfinished_moves()
    unfinished.note_failed(LOG, limit, results([_move(*one) for one in pairwise(borders)]))
    found = planned(unfinished, backlog(LOG, 0, end))
    assert [move.start for move in found] == [0, *(move.end for move in found)][: len(found)]
    assert [at for move in found for piece in move.pieces for at in piece.base_offsets] == list(range(found[-1].end))


def _move(start: int, end: int) -> Move:
    (move,) = moves([backlog(LOG, start, end)], PlanSettings(), lambda _: HERE)
    return move
