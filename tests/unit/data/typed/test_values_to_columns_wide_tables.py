"""Conversion for tables with very many columns: chunks have fewer rows."""

import json

import pytest
from tests.unit.data.typed.test_values_to_columns_json import Table

from lakestream.data.typed import column_buffers


def test_wide_tables_are_converted_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 60_000)
    values: list[bytes | None] = [json.dumps({f"k{i}": i * n for i in range(100)}).encode() for n in range(1_000)]
    table = Table()
    converter, batches = table.convert(values)
    assert [batch.num_rows for batch in batches] == [526, 474]
    assert converter.stats.unconverted == 0
    assert table.restored(batches) == values
