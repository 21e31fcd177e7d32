"""Anomalies of a table, named as the checkers of groups and transactions name those of the log. Pure.

lost write            a committed record is not in the table
duplicate             the table has a record twice
aborted read          the table has an aborted record
precommitted read     the table has a record of an undecided transaction
torn transaction      the table has some records of a transaction and lacks others that it should have
inconsistent offset   the table has a record at or above its next offset
foreign row           the log has no such record: another value, a marker, or a row that was deleted from the table
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lakestream.metadata.claims import BatchKind


class TableRow(NamedTuple):
    partition: int
    offset: int
    value: bytes | None
    timestamp_ms: int


class Origin(NamedTuple):
    """The record that a row should match."""

    row: TableRow
    kind: BatchKind
    transaction: tuple[int, int]
    """Producer and transaction number."""
    is_committed: bool | None
    """None: undecided."""
    is_deleted: bool = False
    """Deleted from the table by an engine."""


class Anomaly(NamedTuple):
    name: str
    row: TableRow


def anomalies(
    rows: Iterable[TableRow],
    origin_of: Callable[[int, int], Origin | None],
    expected: Iterable[Origin],
    ends: Mapping[int, int],
) -> list[Anomaly]:
    """Compares rows with all records that the table should have. `ends`: the table's next offset of each partition."""
    present, by_row = Counter(rows), {origin.row: origin for origin in expected}
    surplus = present - Counter(by_row.keys())
    missing = [origin for row, origin in by_row.items() if row not in present]
    partial = {origin.transaction for row, origin in by_row.items() if row in present and _is_transactional(origin)}
    result = [Anomaly(_surplus_anomaly(row, by_row, origin_of, ends), row) for row in sorted(surplus)]
    result += [
        Anomaly(
            "torn transaction" if _is_transactional(origin) and origin.transaction in partial else "lost write",
            origin.row,
        )
        for origin in missing
    ]
    return result


def _is_transactional(origin: Origin) -> bool:
    return origin.kind is BatchKind.TRANSACTIONAL


def _surplus_anomaly(
    row: TableRow,
    expected: Mapping[TableRow, Origin],
    origin_of: Callable[[int, int], Origin | None],
    ends: Mapping[int, int],
) -> str:
    origin = origin_of(row.partition, row.offset)
    if row in expected:
        return "duplicate"
    if origin is None or origin.row != row or origin.kind >= BatchKind.COMMIT or origin.is_deleted:
        return "foreign row"
    if origin.is_committed is None:
        return "precommitted read"
    if not origin.is_committed:
        return "aborted read"
    return "inconsistent offset" if row.offset >= ends.get(row.partition, 0) else "foreign row"
