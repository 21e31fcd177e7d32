"""What is wrong with a table, by the names that the checkers of groups and transactions use for the log. Pure.

lost write            a record that counts is not in the table
duplicate             it is there twice
aborted read          it is there, and was aborted
precommitted read     it is there, and nobody has decided about it
torn transaction      some records of a transaction are there, others that the table should have are not
inconsistent offset   the table has more than it says that it has
foreign row           nothing of the kind is in the log: another value, a marker, or what somebody took out
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lakestream.metadata.claims import Kind


class TableRow(NamedTuple):
    partition: int
    offset: int
    value: bytes | None
    timestamp_ms: int


class Origin(NamedTuple):
    """The record that a row should be of."""

    row: TableRow
    kind: Kind
    transaction: tuple[int, int]
    """Producer and number."""
    counts: bool | None
    """None: nobody has decided."""
    is_deleted: bool = False
    """From the table, on purpose."""


class Anomaly(NamedTuple):
    name: str
    row: TableRow


def anomalies(
    rows: Iterable[TableRow],
    origin_of: Callable[[int, int], Origin | None],
    expected: Iterable[Origin],
    ends: Mapping[int, int],
) -> list[Anomaly]:
    """`expected`: all that should be there; `ends`: how far the table says that it has each partition."""
    there, wanted = Counter(rows), {origin.row: origin for origin in expected}
    surplus = there - Counter(wanted.keys())
    missing = [origin for row, origin in wanted.items() if row not in there]
    begun = {origin.transaction for row, origin in wanted.items() if row in there and _is_transactional(origin)}
    found = [Anomaly(_of_surplus(row, wanted, origin_of, ends), row) for row in sorted(surplus)]
    found += [
        Anomaly("torn transaction" if _is_transactional(one) and one.transaction in begun else "lost write", one.row)
        for one in missing
    ]
    return found


def _is_transactional(origin: Origin) -> bool:
    return origin.kind is Kind.TRANSACTIONAL


def _of_surplus(
    row: TableRow,
    wanted: Mapping[TableRow, Origin],
    origin_of: Callable[[int, int], Origin | None],
    ends: Mapping[int, int],
) -> str:
    origin = origin_of(row.partition, row.offset)
    if row in wanted:
        return "duplicate"
    if origin is None or origin.row != row or origin.kind >= Kind.COMMIT or origin.is_deleted:
        return "foreign row"
    if origin.counts is None:
        return "precommitted read"
    if not origin.counts:
        return "aborted read"
    return "inconsistent offset" if row.offset >= ends.get(row.partition, 0) else "foreign row"
