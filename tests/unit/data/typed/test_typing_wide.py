"""Tables with very many columns: fewer rows at a time, the same rows."""

import json

import pytest
from tests.unit.data.typed.test_typing_json import Table

from lakestream.data.typed import typing


def test_wide_tables_take_fewer_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "SLOTS_MAX", 60_000)
    values: list[bytes | None] = [json.dumps({f"k{i}": i * n for i in range(100)}).encode() for n in range(1_000)]
    table = Table()
    typist, batches = table.type(values)
    assert [batch.num_rows for batch in batches] == [526, 474]
    assert typist.tally.raw == 0
    assert table.back(batches) == values
