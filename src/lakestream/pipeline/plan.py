"""Selects what to move into tables in a micro-batch. Pure.

Before: backlog.py, which reads the logs.  After: micro_batch.py, which runs and commits the moves.

A micro-batch moves the oldest records first, up to its size limit. A commit costs the same for one record as for a
million, so topics with few new records wait longer the more of them there are: a thousand quiet topics do not cost a
thousand commits every few seconds. A log whose move failed gets one smaller move (unfinished_moves.py). The backlog of
a topic with transactions is cut where no transaction is split, if possible (transaction_cut.py); records behind the cut
are deferred for a limited time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from lakestream.catalog.topic_table.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.metadata.claims import Medium
from lakestream.model import KiB, MiB, PartitionId
from lakestream.pipeline.tasks import Move, Piece
from lakestream.pipeline.transaction_cut import (
    NONE_DEFERRED,
    DeferredLog,
    TransactionId,
    TransactionRanges,
    deferred_logs,
    has_waited,
    transaction_aligned_cut,
)
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    interval_ms: int = 5_000  # between micro-batches
    round_bytes_max: int = 1024 * MiB  # moved in one micro-batch
    move_bytes_max: int = 128 * MiB  # of one log in one move; a longer range becomes several moves and files
    move_bytes_min: int = MiB  # of a log whose moves fail; each failure halves the size, commits raise it again
    commits_max: int = 64  # tables committed to in one micro-batch
    quiet_bytes_max: int = 64 * KiB  # a topic with no more than this is quiet
    quiet_topics: int = 16  # this many quiet topics are moved in every micro-batch, twice as many in every second one …
    whole_wait_ms: int = 10_000  # records are deferred this long for the rest of their transaction in other logs


class LogBatch(NamedTuple):
    """One batch of a log, and its place in an object or segment."""

    offset: int
    offset_end: int
    byte_start: int
    byte_end: int
    medium: Medium
    name: str
    is_rows: bool
    """Whether it becomes rows: it is no marker, and not aborted."""
    transaction: TransactionId | None = None
    """The committed transaction of the batch."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Offsets `[start, end)` of a log that are not in its table. Limited to BATCHES_MAX batches."""

    partition: PartitionId
    start: int
    end: int
    batches: Sequence[LogBatch]
    oldest_ms: int
    """When the first of these records was appended."""

    @property
    def size(self) -> int:
        return sum(batch.byte_end - batch.byte_start for batch in self.batches)


def select_backlogs(
    backlogs: Iterable[Backlog], settings: PlanSettings, now_ms: int, requested: Set[str] = frozenset()
) -> list[Backlog]:
    """Returns the backlogs of the topics to move now. `requested`: ids of topics with refresh requests."""
    topics: defaultdict[str, list[Backlog]] = defaultdict(list)
    for backlog in backlogs:
        if backlog.end > backlog.start:
            topics[backlog.partition.topic_id].append(backlog)
    sizes = {topic: sum(backlog.size for backlog in own) for topic, own in topics.items()}
    quiet = {topic for topic, size in sizes.items() if size <= settings.quiet_bytes_max}
    delay_ms = settings.interval_ms * (max(0, len(quiet) - 1) // settings.quiet_topics)

    def waited_ms(topic: str) -> int:
        return now_ms - min(backlog.oldest_ms for backlog in topics[topic])

    due = [topic for topic in topics if topic in requested or topic not in quiet or waited_ms(topic) >= delay_ms]
    due.sort(key=lambda topic: (topic not in requested, -waited_ms(topic), topic))
    return [backlog for topic in due[: settings.commits_max] for backlog in topics[topic]]


class TransactionAlignedPlan(NamedTuple):
    """The part of a topic's backlogs to move now."""

    backlogs: list[Backlog]
    deferred: Mapping[int, DeferredLog]
    """Logs of which a part is deferred."""
    keeps_whole: bool
    """Whether no transaction is split."""


def align(
    backlogs: Sequence[Backlog],
    ranges: TransactionRanges,
    before: Mapping[int, DeferredLog],
    now_s: float,
    wait_ms: int,
) -> TransactionAlignedPlan:
    """Cuts the backlogs of one topic where no transaction is split.

    Returns the whole backlogs if a log has waited long enough, or if a log lags so far behind that it was not read to
    its end. `before`: what the last micro-batch deferred.
    """
    limit = {one.partition.number: one.end for one in backlogs}
    cut = transaction_aligned_cut(limit, ranges)
    waiting = deferred_logs(before, cut, limit, now_s)
    if ranges.incomplete_partitions or (waiting and has_waited(waiting.values(), now_s, wait_ms)):
        return TransactionAlignedPlan(
            list(backlogs), NONE_DEFERRED if ranges.incomplete_partitions else waiting, keeps_whole=False
        )
    return TransactionAlignedPlan(
        shortened(backlogs, {one.partition: cut[one.partition.number] for one in backlogs}), waiting, True
    )


def shortened(backlogs: Iterable[Backlog], ends: Mapping[PartitionId, int]) -> list[Backlog]:
    """Cuts each backlog at its end, which must be between two batches. Leaves out backlogs that are empty then."""
    found = []
    for one in backlogs:
        end = min(one.end, ends.get(one.partition, one.start))
        if end == one.end:
            found.append(one)
        elif end > one.start:
            found.append(replace(one, end=end, batches=[batch for batch in one.batches if batch.offset < end]))
    return found


class Target(NamedTuple):
    """Location of a topic's table, and how its files are written."""

    location: str
    properties: tuple[tuple[str, str], ...] = ()
    columns: tuple[Column, ...] = ()
    conversion: ConversionSettings | None = None
    layout: FileLayout = PLAIN_LAYOUT


class Retries(NamedTuple):
    """What failed moves left, by log."""

    limits: Mapping[PartitionId, int] = MappingProxyType({})
    """Sizes of the moves of logs whose last move failed; such a log gets one move, besides those that are stored."""
    stored: Mapping[PartitionId, Sequence[Move]] = MappingProxyType({})
    """Moves whose files are stored. They are planned as they are, if nothing of them has changed."""


NO_RETRIES: Final = Retries()


def moves(
    backlogs: Sequence[Backlog],
    settings: PlanSettings,
    target_of: Callable[[str], Target],
    whole: Mapping[str, TransactionRanges] | None = None,
    retries: Retries = NO_RETRIES,
) -> list[Move]:
    """Returns the moves of a micro-batch: one of each log, then a second one of each, until the size limit is reached.

    So a log that lags far behind does not delay the others, and the moves of one log follow one another. `whole`:
    topics in which the limit must not split a transaction, unless the transaction is larger than the limit.
    """
    selected = _interleave(backlogs, settings, target_of, retries)
    ends = reached(selected)
    cuts = ends | {
        PartitionId(topic, number): end
        for topic, ranges in (whole or {}).items()
        for number, end in _whole_part(topic, ranges, backlogs, ends).items()
    }
    return selected if cuts == ends else _interleave(shortened(backlogs, cuts), settings, target_of, retries)


def reached(moves: Iterable[Move]) -> dict[PartitionId, int]:
    """Returns where the moves of each log end."""
    ends: dict[PartitionId, int] = {}
    for move in moves:
        ends[move.partition] = max(ends.get(move.partition, 0), move.end)
    return ends


def _whole_part(
    topic: str, ranges: TransactionRanges, backlogs: Sequence[Backlog], ends: Mapping[PartitionId, int]
) -> Mapping[int, int]:
    """Returns where a full micro-batch cuts the logs of a topic; empty if it must split a transaction."""
    starts = {one.partition.number: one.start for one in backlogs if one.partition.topic_id == topic}
    limit = {number: ends.get(PartitionId(topic, number), start) for number, start in starts.items()}
    cut = transaction_aligned_cut(limit, ranges)
    advances = any(cut[number] > start for number, start in starts.items())
    return {number: cut[number] for number in cut if cut[number] < limit[number]} if advances else {}


def _interleave(
    backlogs: Sequence[Backlog], settings: PlanSettings, target_of: Callable[[str], Target], retries: Retries
) -> list[Move]:
    cuts = [_moves_of(one, settings, target_of(one.partition.topic_id), retries) for one in backlogs]
    selected: list[Move] = []
    room = settings.round_bytes_max
    while cuts and room > 0:
        some = [(move, rest) for rest in cuts if (move := next(rest, None)) is not None]
        for move, _ in some:
            if room <= 0:
                break
            selected.append(move)
            room -= move.size
        cuts = [rest for _, rest in some]
    return selected


def _moves_of(backlog: Backlog, settings: PlanSettings, target: Target, retries: Retries) -> Iterator[Move]:
    stored = {move.start: move for move in retries.stored.get(backlog.partition, ())}
    limit = retries.limits.get(backlog.partition)
    bytes_max = min(settings.move_bytes_max, limit or settings.move_bytes_max)
    new = 0
    for move in _cut(backlog, bytes_max, target, {start: one.end for start, one in stored.items()}):
        new += stored.get(move.start) != move
        if limit is not None and new > 1:
            return
        yield move


def _cut(backlog: Backlog, bytes_max: int, target: Target, stored: Mapping[int, int]) -> Iterator[Move]:
    """Cuts a backlog where a move has its size, and at the starts and ends of stored moves."""
    start, size, batches = backlog.start, 0, list[LogBatch]()
    for batch in backlog.batches:
        batches.append(batch)
        size += batch.byte_end - batch.byte_start
        is_full = batch.offset_end >= stored[start] if start in stored else size >= bytes_max
        if is_full or batch.offset_end in stored:
            yield Move(backlog.partition, start, batch.offset_end, size, _pieces(batches), *target)
            start, size, batches = batch.offset_end, 0, []
    if start < backlog.end:
        yield Move(backlog.partition, start, backlog.end, size, _pieces(batches), *target)


def _pieces(batches: Sequence[LogBatch]) -> tuple[Piece, ...]:
    """One piece for each object or segment, so that its batches are read together."""
    found: dict[tuple[Medium, str], list[LogBatch]] = {}
    for batch in batches:
        if batch.is_rows:
            found.setdefault((batch.medium, batch.name), []).append(batch)
    return tuple(
        Piece(
            medium,
            name,
            tuple(batch.byte_start for batch in own),
            tuple(batch.byte_end for batch in own),
            tuple(batch.offset for batch in own),
        )
        for (medium, name), own in found.items()
    )
