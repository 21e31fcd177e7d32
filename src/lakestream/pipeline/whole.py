"""Where the logs of a topic can be cut so that no transaction is cut with them. Pure.

    cut     how far each log goes into the table: a map of partition and offset
    whole   all records of a transaction, in all logs of the topic, lie below the cut, or none does

Before: backlog.py, which finds out which committed transactions lie where.  After: plan.py cuts there, and the commit
(catalog/append.py) puts the tag `transactions-whole` on a snapshot that is whole.

Nothing is remembered of transactions that are whole. For those that had to be split, the table carries one offset per
log: where the last record of all of them ends. Once it has got there, they are whole, whoever they were.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

Cut: TypeAlias = Mapping[int, int]
"""By partition number; one that is not there is at 0."""


class Transaction(NamedTuple):
    """No two have the same producer and number."""

    producer_id: int
    number: int


class Part(NamedTuple):
    """The records that a transaction has in one log lie in `[first, end)`, between others."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """All that is known of the committed transactions that a round might move."""

    transactions: Mapping[Transaction, Mapping[int, Part]] = field(default_factory=dict)
    """Their parts, by partition."""
    ends: Cut = field(default_factory=dict)
    """Of all logs of the topic. Looked at after the transactions were found to be committed: all they have is below."""
    unread: frozenset[int] = frozenset()
    """Logs that were not read to their end: any transaction may have more in there."""


def joined(part: Part | None, offset: int, offset_end: int) -> Part:
    return Part(offset, offset_end) if part is None else Part(min(part.first, offset), max(part.end, offset_end))


def whole_cut(limit: Cut, where: Whereabouts) -> dict[int, int]:
    """The furthest cut within `limit` that splits no transaction.

    One that does not fit below the limit in some log stays out of every log, and takes with it what lies behind its
    first record there; and so on. Each is looked at once, at its end in each log.
    """
    cut = dict(limit)
    waiting = _by_end(where)
    lowered = list(waiting)
    while lowered:
        number = lowered.pop()
        own = waiting[number]
        while own and own[-1][0] > cut.get(number, 0):
            _, transaction = own.pop()
            for other, part in where.transactions[transaction].items():
                if part.first < cut.get(other, 0):
                    cut[other] = part.first
                    lowered.append(other)
    return cut


def _by_end(where: Whereabouts) -> dict[int, list[tuple[int, Transaction]]]:
    found: dict[int, list[tuple[int, Transaction]]] = {}
    for transaction, parts in where.transactions.items():
        for number, part in parts.items():
            found.setdefault(number, []).append((part.end, transaction))
    for own in found.values():
        own.sort()
    return found


def split_after(before: Cut | None, where: Whereabouts, cut: Cut) -> dict[int, int]:
    """How far the table has to go from `cut` until every transaction of which it has a record is whole. Empty: it is.

    `before`: the same of the table as it was; None: nobody knows. Then whatever is split is whole where the logs end
    now. So is a transaction that may have more in a log which was not read to its end.
    """
    left = dict(where.ends if before is None else before)
    for parts in where.transactions.values():
        if any(part.first < cut.get(number, 0) for number, part in parts.items()):
            ends = {number: part.end for number, part in parts.items()}
            ends.update((number, where.ends[number]) for number in where.unread)
            for number, end in ends.items():
                left[number] = max(end, left.get(number, 0))
    return {number: end for number, end in left.items() if end > cut.get(number, 0)}


# ── waiting for the rest ─────────────────────────────────────────────────────────────────────────────────────────────


class Held(NamedTuple):
    """A log that could be moved further, and where it stopped so that no transaction is split."""

    offset: int
    since_s: float


HELD_NONE: Final[Mapping[int, Held]] = {}


def held(before: Mapping[int, Held], cut: Cut, limit: Cut, now_s: float) -> dict[int, Held]:
    """Since when each log stops where it does. One that gets on, however slowly, is not kept waiting by anybody."""
    return {
        number: before[number]
        if number in before and before[number].offset == cut.get(number, 0)
        else Held(cut.get(number, 0), now_s)
        for number, end in limit.items()
        if cut.get(number, 0) < end
    }


def is_over(waiting: Iterable[Held], now_s: float, wait_ms: int) -> bool:
    """Somebody has waited for long enough."""
    return any(now_s - one.since_s >= wait_ms / 1000 for one in waiting)
