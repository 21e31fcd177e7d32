"""Cuts the logs of a topic where no transaction is split. Pure.

    cut     how far each log is moved into the table: offset by partition
    whole   all records of a transaction, in all logs of the topic, are below the cut, or none is

Before: backlog.py, which reads where committed transactions have records.  After: plan.py cuts there, and the commit
(catalog/operations/append.py) puts the tag `transactions-whole` on a snapshot that splits no transaction.

Nothing is stored about transactions that are whole. For those that had to be split, the table has one offset per log:
the end of the last record of all of them. Once the table has reached it, all of them are whole.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

Cut: TypeAlias = Mapping[int, int]
"""By partition number; a missing partition is at 0."""


class TransactionId(NamedTuple):
    """Producer and number identify a transaction."""

    producer_id: int
    number: int


class TransactionPart(NamedTuple):
    """The offsets `[first, end)` that contain the records of a transaction in one log, among other records."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TransactionRanges:
    """The committed transactions that a micro-batch might move."""

    transactions: Mapping[TransactionId, Mapping[int, TransactionPart]] = field(default_factory=dict)
    """By partition."""
    ends: Cut = field(default_factory=dict)
    """Of all logs of the topic, read after the transactions were committed: all their records are below."""
    incomplete_partitions: frozenset[int] = frozenset()
    """Logs that were not read to their end: any transaction may have more records there."""


def joined(part: TransactionPart | None, offset: int, offset_end: int) -> TransactionPart:
    return (
        TransactionPart(offset, offset_end)
        if part is None
        else TransactionPart(min(part.first, offset), max(part.end, offset_end))
    )


def transaction_aligned_cut(limit: Cut, ranges: TransactionRanges) -> dict[int, int]:
    """Returns the furthest cut within `limit` that splits no transaction.

    A transaction that is not below the limit in some log is left out of every log, with everything behind its first
    record there; this may leave out further transactions. Each one is checked once, at its end in each log.
    """
    cut = dict(limit)
    waiting = _by_end(ranges)
    lowered = list(waiting)
    while lowered:
        number = lowered.pop()
        own = waiting[number]
        while own and own[-1][0] > cut.get(number, 0):
            _, transaction = own.pop()
            for other, part in ranges.transactions[transaction].items():
                if part.first < cut.get(other, 0):
                    cut[other] = part.first
                    lowered.append(other)
    return cut


def _by_end(ranges: TransactionRanges) -> dict[int, list[tuple[int, TransactionId]]]:
    found: dict[int, list[tuple[int, TransactionId]]] = {}
    for transaction, parts in ranges.transactions.items():
        for number, part in parts.items():
            found.setdefault(number, []).append((part.end, transaction))
    for own in found.values():
        own.sort()
    return found


def incomplete_after(before: Cut | None, ranges: TransactionRanges, cut: Cut) -> dict[int, int]:
    """Returns how far the table must be moved until each transaction that it has records of is whole; empty if all are.

    `before`: the same for the table before this commit; None if it is unknown. Then all split transactions are whole
    where the logs end now. The same holds for a transaction that may have records in a log that was not read to its
    end.
    """
    left = dict(ranges.ends if before is None else before)
    for parts in ranges.transactions.values():
        if any(part.first < cut.get(number, 0) for number, part in parts.items()):
            ends = {number: part.end for number, part in parts.items()}
            ends.update((number, ranges.ends[number]) for number in ranges.incomplete_partitions)
            for number, end in ends.items():
                left[number] = max(end, left.get(number, 0))
    return {number: end for number, end in left.items() if end > cut.get(number, 0)}


# ── deferring ────────────────────────────────────────────────────────────────────────────────────────────────────────


class DeferredLog(NamedTuple):
    """A log that could be moved further, and the offset where it stops so that no transaction is split."""

    offset: int
    since_s: float


NONE_DEFERRED: Final[Mapping[int, DeferredLog]] = {}


def deferred_logs(before: Mapping[int, DeferredLog], cut: Cut, limit: Cut, now_s: float) -> dict[int, DeferredLog]:
    """Returns since when each log stops at its offset. A log that advances, however slowly, starts a new wait."""
    return {
        number: before[number]
        if number in before and before[number].offset == cut.get(number, 0)
        else DeferredLog(cut.get(number, 0), now_s)
        for number, end in limit.items()
        if cut.get(number, 0) < end
    }


def has_waited(waiting: Iterable[DeferredLog], now_s: float, wait_ms: int) -> bool:
    """Whether a log has waited for long enough."""
    return any(now_s - one.since_s >= wait_ms / 1000 for one in waiting)
