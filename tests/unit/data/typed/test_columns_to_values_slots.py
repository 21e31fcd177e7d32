"""Rows with long lists are encoded in parts with a limited number of slots; a single row may have more."""

from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.typed.wide_lists import FORMATS, WideTable, rows_of, value_of

from lakestream.data.typed import column_buffers, columns_to_values
from lakestream.data.typed.arrow import from_arrow, slots_of
from lakestream.schemas.model import Format


@pytest.fixture
def encoded_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the numbers of rows that are encoded together."""
    found = []

    def counted(array: Any, layout: Any) -> Any:
        found.append(len(array))
        return from_arrow(array, layout)

    monkeypatch.setattr(columns_to_values, "from_arrow", counted)
    return found


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_with_long_lists_are_encoded_in_parts(
    kind: Format, monkeypatch: pytest.MonkeyPatch, encoded_rows: list[int]
) -> None:
    table = WideTable.of(kind, 9)
    values = [value_of(kind, items) for items in (60, 30, 500, 0, 99, 1, 1, 40, 40)]
    (rows,) = table.converter().convert([rows_of(values)])
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 1_000)
    assert table.restored(rows) == values, "a version without the limit may have written the row of 5,000 slots"
    assert encoded_rows == [2, 1, 2, 4]


def test_slots_of_a_column_include_those_of_its_lists() -> None:
    element = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    array = pa.array([[], None, [{"a": 1, "b": ["x", "y"]}, None], [{"a": 1, "b": None}]], pa.list_(element))
    assert list(np.asarray(slots_of(array))) == [1, 1, 1 + 3 + 2 + 3, 1 + 3]
    assert list(np.asarray(slots_of(array.slice(2)))) == [9, 4]
    assert slots_of(pa.array([{"a": 1, "b": 2}])) == 3
    maps = pa.array([[(1, "a"), (2, "b")], []], pa.map_(pa.int32(), pa.string()))
    assert list(np.asarray(slots_of(maps))) == [5, 1]
    assert list(np.asarray(slots_of(array.slice(0, 0)))) == []
