"""Each anomaly of a table is called by its name."""

import pytest
from tests.simulation.anomalies import Origin, TableRow, anomalies

from lakestream.metadata.claims import Kind

ENDS = {0: 8}


def _row(offset: int, value: bytes = b"") -> TableRow:
    return TableRow(0, offset, value or b"%d" % offset, 0)


def _origin(offset: int, kind: Kind = Kind.PLAIN, transaction: int = 0, counts: bool | None = True) -> Origin:
    return Origin(_row(offset), kind, (7, transaction), counts)


LOG = {
    0: _origin(0),
    1: _origin(1, Kind.TRANSACTIONAL, 1),
    2: _origin(2, Kind.TRANSACTIONAL, 1),
    3: _origin(3, Kind.COMMIT, 1),
    4: _origin(4, Kind.TRANSACTIONAL, 2, counts=False),
    5: _origin(5, Kind.TRANSACTIONAL, 3, counts=None),
    6: _origin(6)._replace(is_deleted=True),
    7: _origin(7),
    8: _origin(8),
}
TRUE = [0, 1, 2, 7]


def _named(offsets: list[int], *others: TableRow) -> list[str]:
    rows = [*map(_row, offsets), *others]
    found = anomalies(rows, lambda _, offset: LOG.get(offset), [LOG[one] for one in TRUE], ENDS)
    return [one.name for one in found]


def test_a_table_that_is_the_log_has_none() -> None:
    assert _named(TRUE) == []


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
def test_what_is_wrong_has_a_name(offsets: list[int], name: str) -> None:
    assert _named(offsets) == [name]


def test_a_transaction_of_which_nothing_is_there_is_lost() -> None:
    assert _named([0, 7]) == ["lost write", "lost write"]


def test_another_value_is_a_row_of_nobody_and_one_that_is_lost() -> None:
    assert _named([1, 2, 7], _row(0, b"other")) == ["foreign row", "lost write"]
