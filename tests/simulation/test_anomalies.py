"""Tests that `anomalies` detects and names each anomaly of a table."""

import pytest
from tests.simulation.anomalies import Origin, TableRow, anomalies

from lakestream.metadata.claims import BatchKind

ENDS = {0: 8}


def _row(offset: int, value: bytes = b"") -> TableRow:
    return TableRow(0, offset, value or b"%d" % offset, 0)


def _origin(
    offset: int, kind: BatchKind = BatchKind.PLAIN, transaction: int = 0, is_committed: bool | None = True
) -> Origin:
    return Origin(_row(offset), kind, (7, transaction), is_committed)


LOG = {
    0: _origin(0),
    1: _origin(1, BatchKind.TRANSACTIONAL, 1),
    2: _origin(2, BatchKind.TRANSACTIONAL, 1),
    3: _origin(3, BatchKind.COMMIT, 1),
    4: _origin(4, BatchKind.TRANSACTIONAL, 2, is_committed=False),
    5: _origin(5, BatchKind.TRANSACTIONAL, 3, is_committed=None),
    6: _origin(6)._replace(is_deleted=True),
    7: _origin(7),
    8: _origin(8),
}
EXPECTED = [0, 1, 2, 7]


def _anomaly_names(offsets: list[int], *extra_rows: TableRow) -> list[str]:
    rows = [*map(_row, offsets), *extra_rows]
    result = anomalies(rows, lambda _, offset: LOG.get(offset), [LOG[offset] for offset in EXPECTED], ENDS)
    return [anomaly.name for anomaly in result]


def test_no_anomaly_when_the_table_matches_the_log() -> None:
    assert _anomaly_names(EXPECTED) == []


@pytest.mark.parametrize(
    ("offsets", "name"),
    [
        ([0, 1, 2], "lost write"),
        ([0, 1, 2, 7, 7], "duplicate"),
        ([0, 2, 7], "torn transaction"),
        ([0, 1, 2, 4, 7], "aborted read"),
        ([0, 1, 2, 5, 7], "precommitted read"),
        ([0, 1, 2, 7, 8], "inconsistent offset"),
        ([0, 1, 2, 3, 7], "foreign row"),
        ([0, 1, 2, 6, 7], "foreign row"),
        ([0, 1, 2, 7, 99], "foreign row"),
    ],
)
def test_anomaly_is_named_when_the_table_differs_from_the_log(offsets: list[int], name: str) -> None:
    assert _anomaly_names(offsets) == [name]


def test_lost_writes_are_reported_when_a_whole_transaction_is_missing() -> None:
    assert _anomaly_names([0, 7]) == ["lost write", "lost write"]


def test_foreign_row_and_lost_write_are_reported_when_a_value_changed() -> None:
    assert _anomaly_names([1, 2, 7], _row(0, b"other")) == ["foreign row", "lost write"]
