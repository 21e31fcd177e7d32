"""What must never be in a history, by the names that Jepsen's Kafka tests gave to most of it. Pure.

- **lost write**: acknowledged, and not in the log in the end; or passed over by a group that has committed beyond it.
- **duplicate**: the log has it twice, or what was made of one record was committed twice.
- **aborted read**: a reader of committed records saw one of a transaction that was never committed.
- **precommitted read**: it saw one before its commit was asked for.
- **torn transaction**: some of its records are there and others are not, or records without offsets, or the reverse.
- **inconsistent offset**: two saw different records at one offset, or one record at two.
- **nonmonotonic poll**: inside a session, an offset came again or late, or a record was passed over.
- **committed offset going back**: by itself, that is, without a commit whose answer was lost.

A call whose outcome is unknown may have had its effect or not, as a whole, at any time after it began.
"""

import bisect
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from tests.integration.turmoil.history import (
    Commit,
    Happened,
    Log,
    Look,
    Outcome,
    Place,
    Poll,
    Record,
    Send,
    Transaction,
    Write,
    load,
)

SHOWN_MAX: Final = 20
"""Of each name."""


class Anomaly(NamedTuple):
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass(frozen=True)
class Facts:
    """A history by kind, and what follows from it. A log is that of all readers, or of those of committed records."""

    events: Sequence[Happened]

    @cached_property
    def sends(self) -> list[Send]:
        return [event for event in self.events if isinstance(event, Send)]

    @cached_property
    def transactions(self) -> list[Transaction]:
        return [event for event in self.events if isinstance(event, Transaction)]

    @cached_property
    def polls(self) -> list[Poll]:
        return sorted((event for event in self.events if isinstance(event, Poll)), key=lambda poll: poll.start_s)

    @cached_property
    def logs(self) -> dict[tuple[Place, bool], dict[int, str]]:
        """By place and `committed`; values by offset."""
        return {(event.place, event.committed): dict(event.records) for event in self.events if isinstance(event, Log)}

    @cached_property
    def visible(self) -> dict[Place, set[str]]:
        """The values that readers of committed records find in the end."""
        return {place: set(log.values()) for (place, committed), log in self.logs.items() if committed}

    @cached_property
    def of_value(self) -> dict[str, Transaction]:
        return {write.value: one for one in self.transactions for write in one.writes}

    @cached_property
    def ends(self) -> dict[tuple[str, Place], int]:
        """By group and place, what the last look saw."""
        looks = sorted((event for event in self.events if isinstance(event, Look)), key=lambda look: look.start_s)
        return {(look.group, place): offset for look in looks for place, offset in look.positions}

    def acknowledged(self) -> Iterator[Write]:
        yield from (event.write for event in self.sends if event.outcome is Outcome.DONE)
        for event in self.transactions:
            if event.outcome is Outcome.DONE:
                yield from event.writes

    def is_there(self, write: Write) -> bool:
        return write.value in self.visible.get(write.place, ())


def check(events: Sequence[Happened]) -> list[Anomaly]:
    facts = Facts(events)
    return [Anomaly(name, what) for name, rule in RULES for what in rule(facts)]


def report(anomalies: Sequence[Anomaly]) -> str:
    """A line for each, not too many of one name, and how many there are."""
    counted = Counter(anomaly.name for anomaly in anomalies)
    lines = [f"{name}: {count}" for name, count in counted.items()] or ["no anomaly"]
    for name in counted:
        lines += [f"  {one}" for one in [one for one in anomalies if one.name == name][:SHOWN_MAX]]
    return "\n".join(lines)


# ── what is in the log, and what is not ──────────────────────────────────────────────────────────────────────────────


def lost_writes(facts: Facts) -> Iterator[str]:
    for write in facts.acknowledged():
        if not facts.is_there(write):
            yield f"{write.value} in {write.place} at {write.offset}"


def passed_over(facts: Facts) -> Iterator[str]:
    """Members commit what they have read, so a group that is beyond a record has read it."""
    read: defaultdict[tuple[str, Place], set[int]] = defaultdict(set)
    isolation: dict[str, bool] = {}
    for poll in facts.polls:
        if poll.group:
            isolation[poll.group] = poll.committed
            read[poll.group, poll.place].update(record.offset for record in poll.records)
    for (group, place), end in facts.ends.items():
        log = facts.logs.get((place, isolation.get(group, True)), {})
        for offset in sorted(offset for offset in log if offset < end and offset not in read[group, place]):
            yield f"{group} committed {end} of {place}, and no member has read {log[offset]} at {offset}"


def duplicates(facts: Facts) -> Iterator[str]:
    for (place, committed), log in facts.logs.items():
        if committed:
            for value, count in Counter(log.values()).items():
                if count > 1:
                    yield f"{value} is {count} times in {place}"


def made_twice(facts: Facts) -> Iterator[str]:
    for (group, place, offset), writes in _made(facts).items():
        if len(writes) > 1:
            yield f"{group} made {' and '.join(write.value for write in writes)} of {place} at {offset}"


def torn_transactions(facts: Facts) -> Iterator[str]:
    for one in facts.transactions:
        there = [write for write in one.writes if facts.is_there(write)]
        if there and len(there) < len(one.writes):
            missing = [write.value for write in one.writes if write not in there]
            yield f"of {one.client}, has {[write.value for write in there]} and not {missing}"


def torn_offsets(facts: Facts) -> Iterator[str]:
    """Whoever reads, writes and commits in one transaction has written one for every record before its offset, and
    none for those behind it."""
    made = _made(facts)
    groups = {one.group for one in facts.transactions if one.group}
    for (group, place), end in facts.ends.items():
        for offset, value in facts.logs.get((place, True), {}).items():
            if group in groups and offset < end and (group, place, offset) not in made:
                yield f"{group} committed {end} of {place} without what it made of {value} at {offset}"
    for (group, place, offset), writes in made.items():
        if offset >= facts.ends.get((group, place), 0):
            yield f"{group} made {writes[0].value} of {place} at {offset} without the offset"


def _made(facts: Facts) -> dict[tuple[str, Place, int], list[Write]]:
    """What is there of what groups made, by what they made it of."""
    made: defaultdict[tuple[str, Place, int], list[Write]] = defaultdict(list)
    for one in facts.transactions:
        for write in one.writes:
            if write.source is not None and facts.is_there(write):
                made[one.group, write.source.place, write.source.offset].append(write)
    return made


# ── what readers saw ─────────────────────────────────────────────────────────────────────────────────────────────────


def aborted_reads(facts: Facts) -> Iterator[str]:
    for client, place, record, _ in _committed_reads(facts):
        one = facts.of_value.get(record.value)
        if one is not None and one.outcome is Outcome.NOT:
            yield f"{client} saw {record.value} in {place} at {record.offset}"


def precommitted_reads(facts: Facts) -> Iterator[str]:
    for client, place, record, end_s in _committed_reads(facts):
        one = facts.of_value.get(record.value)
        if one is not None and one.ending_s is not None and end_s < one.ending_s:
            early_s = one.ending_s - end_s
            yield f"{client} saw {record.value} in {place} at {record.offset}, {early_s:.3f} s before its commit"


def _committed_reads(facts: Facts) -> Iterator[tuple[str, Place, Record, float]]:
    for event in facts.events:
        if isinstance(event, Poll | Log) and event.committed:
            for record in event.records:
                yield event.client, event.place, record, event.end_s


def inconsistent_offsets(facts: Facts) -> Iterator[str]:
    at: dict[tuple[Place, int], tuple[str, str]] = {}  # the value, and who saw it first
    of: dict[str, tuple[Place, int, str]] = {}
    for who, place, (offset, value) in _seen(facts):
        other, first = at.setdefault((place, offset), (value, who))
        if other != value:
            yield f"{place} at {offset} is {other} to {first}, and {value} to {who}"
        home, before, first = of.setdefault(value, (place, offset, who))
        if (home, before) != (place, offset) and who != first:  # in one log it is a duplicate
            yield f"{value} is at {before} of {home} to {first}, and at {offset} of {place} to {who}"


def _seen(facts: Facts) -> Iterator[tuple[str, Place, Record]]:
    for (place, _), log in facts.logs.items():
        yield from (("the log", place, Record(offset, value)) for offset, value in log.items())
    for write in facts.acknowledged():
        if write.offset is not None:
            yield "its writer", write.place, Record(write.offset, write.value)
    for poll in facts.polls:
        yield from ((poll.client, poll.place, record) for record in poll.records)


def nonmonotonic_polls(facts: Facts) -> Iterator[str]:
    offsets = {key: sorted(log) for key, log in facts.logs.items()}
    last: dict[tuple[str, int, Place], int] = {}
    for poll in facts.polls:
        key = (poll.client, poll.session, poll.place)
        there = offsets.get((poll.place, poll.committed), [])
        for offset, value in poll.records:
            before = last.get(key)
            last[key] = offset
            who = f"{poll.client} in session {poll.session}: {poll.place}"
            if before is not None and offset <= before:
                yield f"{who} {value} at {offset} came after {before}"
            elif before is not None and (passed := _between(there, before + 1, offset)):
                yield f"{who} went from {before} to {offset} over {passed}"


def _between(offsets: list[int], start: int, end: int) -> list[int]:
    return offsets[bisect.bisect_left(offsets, start) : bisect.bisect_left(offsets, end)]


# ── what groups have committed ───────────────────────────────────────────────────────────────────────────────────────


class _Seen(NamedTuple):
    """A group's offset, at some time between the two."""

    start_s: float
    end_s: float
    offset: int
    who: str


def offsets_going_back(facts: Facts) -> Iterator[str]:
    seen: defaultdict[tuple[str, Place], list[_Seen]] = defaultdict(list)
    doubtful: defaultdict[tuple[str, Place], list[tuple[float, int]]] = defaultdict(list)
    for event in facts.events:
        if not isinstance(event, Look | Commit | Transaction):
            continue
        for place, offset in event.positions:
            if isinstance(event, Look) or (isinstance(event, Commit) and event.outcome is Outcome.DONE):
                seen[event.group, place].append(_Seen(event.start_s, event.end_s, offset, event.client))
            elif event.outcome is Outcome.UNKNOWN:
                doubtful[event.group, place].append((event.start_s, offset))
    for (group, place), found in seen.items():
        yield from (f"{group} {place}: {what}" for what in _going_back(found, doubtful[group, place]))


def _going_back(found: list[_Seen], doubtful: list[tuple[float, int]]) -> Iterator[str]:
    """Each against the highest that was seen for certain before it began."""
    ended = sorted(found, key=lambda one: one.end_s)
    highest: _Seen | None = None
    number = 0
    for one in sorted(found, key=lambda one: one.start_s):
        while ended[number].end_s < one.start_s:
            if highest is None or ended[number].offset > highest.offset:
                highest = ended[number]
            number += 1
        is_excused = any(offset == one.offset and start_s < one.end_s for start_s, offset in doubtful)
        if highest is not None and one.offset < highest.offset and not is_excused:
            yield (
                f"{highest.offset} to {highest.who} at {highest.end_s:.3f} s, {one.offset} to {one.who} at"
                f" {one.end_s:.3f} s"
            )


Rule = Callable[[Facts], Iterator[str]]

RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("lost write", lost_writes),
    ("lost write", passed_over),
    ("duplicate", duplicates),
    ("duplicate", made_twice),
    ("aborted read", aborted_reads),
    ("precommitted read", precommitted_reads),
    ("torn transaction", torn_transactions),
    ("torn transaction", torn_offsets),
    ("inconsistent offset", inconsistent_offsets),
    ("nonmonotonic poll", nonmonotonic_polls),
    ("committed offset going back", offsets_going_back),
)


if __name__ == "__main__":
    print(report(check(load(Path(sys.argv[1])))))
