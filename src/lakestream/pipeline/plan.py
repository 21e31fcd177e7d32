"""What to move into tables now: pure decisions.

Before: backlog.py, which looks at the logs.  After: rounds.py, which has the moves done and committed.

A round moves what is there, oldest first, as much as one round may take. A commit costs the same for one record as for
a million, so topics with little wait for longer the more of them there are: a thousand quiet topics do not cost a
thousand commits every few seconds. Where a topic has transactions, it is cut where none is split, if there is such a
place (whole.py); what lies behind it waits for the rest, for a while.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from lakestream.catalog.file_layout import PLAIN_LAYOUT, FileLayout
from lakestream.metadata.claims import Medium
from lakestream.model import KiB, MiB, PartitionId
from lakestream.pipeline.tasks import Move, Piece
from lakestream.pipeline.whole import HELD_NONE, Held, Transaction, Whereabouts, held, is_over, whole_cut
from lakestream.schemas.columns import Column
from lakestream.schemas.typing import Typing


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    interval_ms: int = 5_000  # between rounds
    round_bytes_max: int = 1024 * MiB  # moved in one round
    move_bytes_max: int = 128 * MiB  # of one log in one piece of work; more of it is several, and as many files
    commits_max: int = 64  # tables committed to in one round
    quiet_bytes_max: int = 64 * KiB  # a topic with no more than this is quiet
    quiet_topics: int = 16  # so many quiet topics are moved every round; twice as many every second round, and so on
    whole_wait_ms: int = 10_000  # what a log has waits so long for the rest of a transaction in other logs


class Spot(NamedTuple):
    """One batch of a log, and where it lies."""

    offset: int
    offset_end: int
    byte_start: int
    byte_end: int
    medium: Medium
    name: str
    is_rows: bool
    """It becomes rows: no marker, and not aborted."""
    transaction: Transaction | None = None
    """The committed one that it is part of."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What one log has that its table has not: offsets `[start, end)`, as far as a round may want to know."""

    partition: PartitionId
    start: int
    end: int
    spots: Sequence[Spot]
    oldest_ms: int
    """When the first of it was appended."""

    @property
    def size(self) -> int:
        return sum(spot.byte_end - spot.byte_start for spot in self.spots)


def chosen(
    backlogs: Iterable[Backlog], settings: PlanSettings, now_ms: int, asked: Set[str] = frozenset()
) -> list[Backlog]:
    """The backlogs of the topics whose turn it is. `asked`: ids of topics that somebody waits for."""
    topics: defaultdict[str, list[Backlog]] = defaultdict(list)
    for backlog in backlogs:
        if backlog.end > backlog.start:
            topics[backlog.partition.topic_id].append(backlog)
    sizes = {topic: sum(backlog.size for backlog in own) for topic, own in topics.items()}
    quiet = {topic for topic, size in sizes.items() if size <= settings.quiet_bytes_max}
    patience_ms = settings.interval_ms * (max(0, len(quiet) - 1) // settings.quiet_topics)

    def waited_ms(topic: str) -> int:
        return now_ms - min(backlog.oldest_ms for backlog in topics[topic])

    due = [topic for topic in topics if topic in asked or topic not in quiet or waited_ms(topic) >= patience_ms]
    due.sort(key=lambda topic: (topic not in asked, -waited_ms(topic), topic))
    return [backlog for topic in due[: settings.commits_max] for backlog in topics[topic]]


class Preferred(NamedTuple):
    """How far to go with a topic."""

    backlogs: list[Backlog]
    held: Mapping[int, Held]
    """Logs that stop before what they could be moved to."""
    keeps_whole: bool
    """Whether a cut that splits nothing is still to be had."""


def preferred(
    backlogs: Sequence[Backlog], where: Whereabouts, before: Mapping[int, Held], now_s: float, wait_ms: int
) -> Preferred:
    """Of one topic, what splits no transaction. If some log has waited for long enough: all of it. A log that is so far
    behind that nobody knows all of it does not wait either. `before`: what was held back in the last round."""
    limit = {one.partition.number: one.end for one in backlogs}
    cut = whole_cut(limit, where)
    waiting = held(before, cut, limit, now_s)
    if where.unread or (waiting and is_over(waiting.values(), now_s, wait_ms)):
        return Preferred(list(backlogs), HELD_NONE if where.unread else waiting, keeps_whole=False)
    return Preferred(shortened(backlogs, {one.partition: cut[one.partition.number] for one in backlogs}), waiting, True)


def shortened(backlogs: Iterable[Backlog], ends: Mapping[PartitionId, int]) -> list[Backlog]:
    """Each up to its end, which lies between two batches. What is empty then is left out."""
    found = []
    for one in backlogs:
        end = min(one.end, ends.get(one.partition, one.start))
        if end == one.end:
            found.append(one)
        elif end > one.start:
            found.append(replace(one, end=end, spots=[spot for spot in one.spots if spot.offset < end]))
    return found


class Target(NamedTuple):
    """The table of a topic: where it is, and how its files are to be written."""

    location: str
    properties: tuple[tuple[str, str], ...] = ()
    columns: tuple[Column, ...] = ()
    typing: Typing | None = None
    layout: FileLayout = PLAIN_LAYOUT


def moves(
    backlogs: Sequence[Backlog],
    settings: PlanSettings,
    target_of: Callable[[str], Target],
    whole: Mapping[str, Whereabouts] | None = None,
) -> list[Move]:
    """The work of a round: each log in turn gives one move, then each a second one, until the round is full.

    So a log that is far behind does not keep the others waiting, and the moves of one log follow one another. `whole`:
    topics that a full round shall not end in the middle of a transaction, unless that is larger than a round."""
    made = _in_turns(backlogs, settings, target_of)
    ends = reached(made)
    cuts = ends | {
        PartitionId(topic, number): end
        for topic, where in (whole or {}).items()
        for number, end in _whole_part(topic, where, backlogs, ends).items()
    }
    return made if cuts == ends else _in_turns(shortened(backlogs, cuts), settings, target_of)


def reached(moves: Iterable[Move]) -> dict[PartitionId, int]:
    """Where each log gets to."""
    ends: dict[PartitionId, int] = {}
    for move in moves:
        ends[move.partition] = max(ends.get(move.partition, 0), move.end)
    return ends


def _whole_part(
    topic: str, where: Whereabouts, backlogs: Sequence[Backlog], ends: Mapping[PartitionId, int]
) -> Mapping[int, int]:
    """How far a full round goes with this topic; where it has to split a transaction, nothing is said."""
    starts = {one.partition.number: one.start for one in backlogs if one.partition.topic_id == topic}
    limit = {number: ends.get(PartitionId(topic, number), start) for number, start in starts.items()}
    cut = whole_cut(limit, where)
    gets_on = any(cut[number] > start for number, start in starts.items())
    return {number: cut[number] for number in cut if cut[number] < limit[number]} if gets_on else {}


def _in_turns(backlogs: Sequence[Backlog], settings: PlanSettings, target_of: Callable[[str], Target]) -> list[Move]:
    cuts = [iter(_cut(one, settings.move_bytes_max, target_of(one.partition.topic_id))) for one in backlogs]
    made: list[Move] = []
    room = settings.round_bytes_max
    while cuts and room > 0:
        some = [(move, rest) for rest in cuts if (move := next(rest, None)) is not None]
        for move, _ in some:
            if room <= 0:
                break
            made.append(move)
            room -= move.size
        cuts = [rest for _, rest in some]
    return made


def _cut(backlog: Backlog, bytes_max: int, target: Target) -> Iterable[Move]:
    start, size, spots = backlog.start, 0, list[Spot]()
    for spot in backlog.spots:
        spots.append(spot)
        size += spot.byte_end - spot.byte_start
        if size >= bytes_max:
            yield Move(backlog.partition, start, spot.offset_end, size, _pieces(spots), *target)
            start, size, spots = spot.offset_end, 0, []
    if start < backlog.end:
        yield Move(backlog.partition, start, backlog.end, size, _pieces(spots), *target)


def _pieces(spots: Sequence[Spot]) -> tuple[Piece, ...]:
    """What lies together is read together."""
    found: dict[tuple[Medium, str], list[Spot]] = {}
    for spot in spots:
        if spot.is_rows:
            found.setdefault((spot.medium, spot.name), []).append(spot)
    return tuple(
        Piece(
            medium,
            name,
            tuple(spot.byte_start for spot in own),
            tuple(spot.byte_end for spot in own),
            tuple(spot.offset for spot in own),
        )
        for (medium, name), own in found.items()
    )
