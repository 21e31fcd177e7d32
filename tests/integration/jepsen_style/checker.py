"""Finds anomalies in a history, most of them named as in Jepsen's Kafka tests. Pure.

- **lost write**: acknowledged, but not in the log at the end; or skipped by a group that has committed a later offset.
- **duplicate**: a record is in the log twice, or the result of one record was committed twice.
- **reordered write**: acknowledged records of a producer are not in the order in which it sent them.
- **inconsistent log**: two reads of a log at the end return different records, or the table has others than the log.
- **aborted read**: a reader of committed records read a record of a transaction that was never committed.
- **precommitted read**: it read a record before the commit of its transaction was requested.
- **torn transaction**: only some records of a transaction are visible, or its records without its offsets, or its
  offsets without its records.
- **inconsistent offset**: two clients read different records at one offset, or one record at two offsets.
- **nonmonotonic poll**: inside a session, an offset was read again or too late, or a record was skipped.
- **committed offset going back**: without a commit whose response was lost.

A call with an unknown outcome may have had its whole effect or none, at any time after its start.
"""

import bisect
import itertools
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from tests.integration.jepsen_style.history import (
    Commit,
    HistoryEvent,
    Log,
    OffsetRead,
    Outcome,
    Place,
    Poll,
    Record,
    Rows,
    Send,
    Transaction,
    Write,
    load,
)

SHOWN_MAX: Final = 20
"""Reported anomalies of each name."""


class Anomaly(NamedTuple):
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass(frozen=True)
class Facts:
    """Events of a history by kind, and facts that follow from them.

    A log is that of all records, or that of the committed records."""

    events: Sequence[HistoryEvent]

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
        """Values by offset, for each place and `committed`."""
        return {(event.place, event.committed): dict(event.records) for event in self.events if isinstance(event, Log)}

    @cached_property
    def visible(self) -> dict[Place, set[str]]:
        """Values in the logs of committed records at the end."""
        return {place: set(log.values()) for (place, committed), log in self.logs.items() if committed}

    @cached_property
    def transactions_by_value(self) -> dict[str, Transaction]:
        return {write.value: transaction for transaction in self.transactions for write in transaction.writes}

    @cached_property
    def last_offsets(self) -> dict[tuple[str, Place], int]:
        """Last read offset by group and place."""
        reads = sorted((event for event in self.events if isinstance(event, OffsetRead)), key=lambda read: read.start_s)
        return {(read.group, place): offset for read in reads for place, offset in read.positions}

    def acknowledged(self) -> Iterator[Write]:
        yield from (event.write for event in self.sends if event.outcome is Outcome.DONE)
        for event in self.transactions:
            if event.outcome is Outcome.DONE:
                yield from event.writes

    def is_visible(self, write: Write) -> bool:
        return write.value in self.visible.get(write.place, ())


def check(events: Sequence[HistoryEvent]) -> list[Anomaly]:
    facts = Facts(events)
    return [Anomaly(name, what) for name, rule in RULES for what in rule(facts)]


def report(anomalies: Sequence[Anomaly]) -> str:
    """Returns the number of anomalies of each name, and a line for each of the first ones."""
    counted = Counter(anomaly.name for anomaly in anomalies)
    lines = [f"{name}: {count}" for name, count in counted.items()] or ["no anomaly"]
    for name in counted:
        lines += [f"  {anomaly}" for anomaly in [anomaly for anomaly in anomalies if anomaly.name == name][:SHOWN_MAX]]
    return "\n".join(lines)


# Contents of the logs


def lost_writes(facts: Facts) -> Iterator[str]:
    for write in facts.acknowledged():
        if not facts.is_visible(write):
            yield f"{write.value} in {write.place} at {write.offset}"


def skipped_records(facts: Facts) -> Iterator[str]:
    """Members commit offsets of records that they have read, so a group has read all records below its offset."""
    read: defaultdict[tuple[str, Place], set[int]] = defaultdict(set)
    isolation: dict[str, bool] = {}
    for poll in facts.polls:
        if poll.group:
            isolation[poll.group] = poll.committed
            read[poll.group, poll.place].update(record.offset for record in poll.records)
    for (group, place), end in facts.last_offsets.items():
        log = facts.logs.get((place, isolation.get(group, True)), {})
        for offset in sorted(offset for offset in log if offset < end and offset not in read[group, place]):
            yield f"{group} committed {end} of {place}, but no member has read {log[offset]} at {offset}"


def duplicates(facts: Facts) -> Iterator[str]:
    for (place, committed), log in facts.logs.items():
        if committed:
            for value, count in Counter(log.values()).items():
                if count > 1:
                    yield f"{value} is {count} times in {place}"


def produced_twice(facts: Facts) -> Iterator[str]:
    for (group, place, offset), writes in _produced(facts).items():
        if len(writes) > 1:
            yield f"{group} produced {' and '.join(write.value for write in writes)} from {place} at {offset}"


def reordered_writes(facts: Facts) -> Iterator[str]:
    sent: defaultdict[tuple[str, Place], list[tuple[float, Write]]] = defaultdict(list)
    for event in facts.events:
        if isinstance(event, Send | Transaction) and event.outcome is Outcome.DONE:
            for write in (event.write,) if isinstance(event, Send) else event.writes:
                sent[event.client, write.place].append((event.start_s, write))
    for (client, place), writes in sent.items():
        in_order = [write for _, write in sorted(writes, key=itemgetter(0)) if write.offset is not None]
        for earlier, later in itertools.pairwise(in_order):
            if (earlier.offset or 0) > (later.offset or 0):
                offsets = f"{earlier.offset} and {later.offset}"
                yield f"{client} sent {earlier.value} before {later.value}: they are in {place} at {offsets}"


def inconsistent_logs(facts: Facts) -> Iterator[str]:
    """All reads of committed records, and the table, have the same records. A read of all records has these, too."""
    for event in facts.events:
        if isinstance(event, Log | Rows):
            log = facts.logs.get((event.place, True), {})
            counts = Counter(record.offset for record in event.records)
            is_committed = isinstance(event, Rows) or event.committed
            differences = {
                "twice": [offset for offset, count in counts.items() if count > 1],
                "not": [offset for offset in log if offset not in counts],
                "additionally": [offset for offset in counts if offset not in log and is_committed],
                "with another content": [at for at, value in event.records if log.get(at, value) != value],
            }
            for how, offsets in differences.items():
                if offsets:
                    yield f"{event.client} has {event.place} {how} at {sorted(offsets)[:SHOWN_MAX]}"


def torn_transactions(facts: Facts) -> Iterator[str]:
    for transaction in facts.transactions:
        visible = [write for write in transaction.writes if facts.is_visible(write)]
        if visible and len(visible) < len(transaction.writes):
            missing = [write.value for write in transaction.writes if write not in visible]
            yield f"of {transaction.client}, has {[write.value for write in visible]} and not {missing}"


def torn_offsets(facts: Facts) -> Iterator[str]:
    """A program that copies records in transactions has written a record for every record below its committed offset,
    and none for later records."""
    produced = _produced(facts)
    groups = {transaction.group for transaction in facts.transactions if transaction.group}
    for (group, place), end in facts.last_offsets.items():
        for offset, value in facts.logs.get((place, True), {}).items():
            if group in groups and offset < end and (group, place, offset) not in produced:
                yield f"{group} committed {end} of {place} without the result of {value} at {offset}"
    for (group, place, offset), writes in produced.items():
        if offset >= facts.last_offsets.get((group, place), 0):
            yield f"{group} produced {writes[0].value} from {place} at {offset} without the offset"


def _produced(facts: Facts) -> dict[tuple[str, Place, int], list[Write]]:
    """Returns the visible records that groups produced from other records, by group, place and offset of the source."""
    produced: defaultdict[tuple[str, Place, int], list[Write]] = defaultdict(list)
    for transaction in facts.transactions:
        for write in transaction.writes:
            if write.source is not None and facts.is_visible(write):
                produced[transaction.group, write.source.place, write.source.offset].append(write)
    return produced


# Records of readers


def aborted_reads(facts: Facts) -> Iterator[str]:
    for client, place, record, _ in _committed_reads(facts):
        transaction = facts.transactions_by_value.get(record.value)
        if transaction is not None and transaction.outcome is Outcome.NO_EFFECT:
            yield f"{client} read {record.value} in {place} at {record.offset}"


def precommitted_reads(facts: Facts) -> Iterator[str]:
    for client, place, record, end_s in _committed_reads(facts):
        transaction = facts.transactions_by_value.get(record.value)
        if transaction is not None and transaction.ending_s is not None and end_s < transaction.ending_s:
            early_s = transaction.ending_s - end_s
            yield f"{client} read {record.value} in {place} at {record.offset}, {early_s:.3f} s before its commit"


def _committed_reads(facts: Facts) -> Iterator[tuple[str, Place, Record, float]]:
    for event in facts.events:
        if isinstance(event, Poll | Log) and event.committed:
            for record in event.records:
                yield event.client, event.place, record, event.end_s


def inconsistent_offsets(facts: Facts) -> Iterator[str]:
    values: dict[tuple[Place, int], tuple[str, str]] = {}  # the value, and its first reader
    offsets: dict[str, tuple[Place, int, str]] = {}
    for reader, place, (offset, value) in _observed(facts):
        first_value, first_reader = values.setdefault((place, offset), (value, reader))
        if first_value != value:
            yield f"{place} at {offset} is {first_value} for {first_reader}, and {value} for {reader}"
        first_place, first_offset, first_reader = offsets.setdefault(value, (place, offset, reader))
        if (first_place, first_offset) != (place, offset) and reader != first_reader:  # in one log it is a duplicate
            yield (
                f"{value} is at {first_offset} of {first_place} for {first_reader}, and at {offset} of {place} for"
                f" {reader}"
            )


def _observed(facts: Facts) -> Iterator[tuple[str, Place, Record]]:
    for event in facts.events:
        if isinstance(event, Log | Rows):
            yield from ((event.client, event.place, record) for record in event.records)
    for write in facts.acknowledged():
        if write.offset is not None:
            yield "its producer", write.place, Record(write.offset, write.value)
    for poll in facts.polls:
        yield from ((poll.client, poll.place, record) for record in poll.records)


def nonmonotonic_polls(facts: Facts) -> Iterator[str]:
    offsets = {key: sorted(log) for key, log in facts.logs.items()}
    last: dict[tuple[str, int, Place], int] = {}
    for poll in facts.polls:
        key = (poll.client, poll.session, poll.place)
        log_offsets = offsets.get((poll.place, poll.committed), [])
        for offset, value in poll.records:
            previous = last.get(key)
            last[key] = offset
            reader = f"{poll.client} in session {poll.session}: {poll.place}"
            if previous is not None and offset <= previous:
                yield f"{reader} {value} at {offset} was read after {previous}"
            elif previous is not None and (skipped := _between(log_offsets, previous + 1, offset)):
                yield f"{reader} skipped {skipped} between {previous} and {offset}"


def _between(offsets: list[int], start: int, end: int) -> list[int]:
    return offsets[bisect.bisect_left(offsets, start) : bisect.bisect_left(offsets, end)]


# Committed offsets of groups


class _ObservedOffset(NamedTuple):
    """Offset of a group at some time between start and end."""

    start_s: float
    end_s: float
    offset: int
    client: str


def offsets_going_back(facts: Facts) -> Iterator[str]:
    observed: defaultdict[tuple[str, Place], list[_ObservedOffset]] = defaultdict(list)
    uncertain: defaultdict[tuple[str, Place], list[tuple[float, int]]] = defaultdict(list)
    for event in facts.events:
        if not isinstance(event, OffsetRead | Commit | Transaction):
            continue
        for place, offset in event.positions:
            if isinstance(event, OffsetRead) or (isinstance(event, Commit) and event.outcome is Outcome.DONE):
                observed[event.group, place].append(_ObservedOffset(event.start_s, event.end_s, offset, event.client))
            elif event.outcome is Outcome.UNKNOWN:
                uncertain[event.group, place].append((event.start_s, offset))
    for (group, place), offsets in observed.items():
        yield from (f"{group} {place}: {text}" for text in _going_back(offsets, uncertain[group, place]))


def _going_back(observed: list[_ObservedOffset], uncertain: list[tuple[float, int]]) -> Iterator[str]:
    """Compares each offset with the highest offset whose read ended before its start."""
    ended = sorted(observed, key=lambda offset: offset.end_s)
    highest: _ObservedOffset | None = None
    number = 0
    for current in sorted(observed, key=lambda offset: offset.start_s):
        while ended[number].end_s < current.start_s:
            if highest is None or ended[number].offset > highest.offset:
                highest = ended[number]
            number += 1
        is_excused = any(offset == current.offset and start_s < current.end_s for start_s, offset in uncertain)
        if highest is not None and current.offset < highest.offset and not is_excused:
            yield (
                f"{highest.offset} for {highest.client} at {highest.end_s:.3f} s,"
                f" {current.offset} for {current.client} at {current.end_s:.3f} s"
            )


Rule = Callable[[Facts], Iterator[str]]

RULES: Final[tuple[tuple[str, Rule], ...]] = (
    ("lost write", lost_writes),
    ("lost write", skipped_records),
    ("duplicate", duplicates),
    ("duplicate", produced_twice),
    ("reordered write", reordered_writes),
    ("inconsistent log", inconsistent_logs),
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
