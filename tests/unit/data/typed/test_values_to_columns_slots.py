"""Conversion of values whose lists have very many slots: in small chunks, or not at all, in bounded memory."""

import json
import subprocess
import sys
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.typed.wide_lists import FORMATS, WideTable, rows_of, value_of
from tests.unit.data.typed.test_values_to_columns_json import Table as JsonTable

from lakestream.data.typed import column_buffers
from lakestream.data.typed.arrow import slots_of
from lakestream.data.typed.values_to_columns import NO_MEMORY, WriterConversion
from lakestream.schemas.model import Format
from lakestream.schemas.value_format import ConversionErrors, OnInvalid

FIELDS = 9
TOO_MANY = "its lists have more than 8,388,608 elements times columns"


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_buffers, "SLOTS_MAX", 1_000)


def slots(batch: Any) -> int:
    return int(np.sum(slots_of(batch.column("l"))))


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("kind", FORMATS)
def test_values_with_too_many_slots_keep_their_bytes(kind: Format) -> None:
    table = WideTable.of(kind, FIELDS)
    few, bomb = value_of(kind, 2), value_of(kind, 20_000)
    values = [few, bomb, None, few, bomb]
    converter = table.converter(OnInvalid.STOP)
    (made,) = converter.convert([rows_of(values)])
    assert made.column("l").is_valid().to_pylist() == [True, False, False, True, False]
    assert made.column("_stream").field("value").to_pylist() == [None, bomb, None, None, bomb]
    assert table.restored(made) == values
    assert (converter.stats.converted, converter.stats.unconverted) == (2, 2)
    assert converter.stats.errors() == (ConversionErrors(TOO_MANY, 1, 2, 1),)


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize("kind", FORMATS)
def test_chunks_have_a_limited_number_of_slots(kind: Format) -> None:
    table, items = WideTable.of(kind, FIELDS), [30, 90, 1, 90, 1, 1, 30, 30, 60, 100, 101, 0, 5, 100, 100, 100] * 3
    values = [value_of(kind, count) for count in items]
    converter = table.converter()
    batches = list(converter.convert([rows_of(values)]))
    assert sum(batch.num_rows for batch in batches) == len(values)
    assert all(slots(batch) <= 1_000 + 2 * batch.num_rows for batch in batches)
    assert max(batch.num_rows for batch in batches) >= 3
    assert [value for batch in batches for value in table.restored(batch)] == values
    assert (converter.stats.converted, converter.stats.unconverted) == (45, 3), "a chunk that is cut is counted once"
    assert converter.stats.errors() == (ConversionErrors(TOO_MANY, 1, 3, 10),)


@pytest.mark.usefixtures("limit")
def test_types_of_json_are_inferred_from_values_with_too_many_slots() -> None:
    table = JsonTable()
    full = json.dumps({"l": [{f"f{number}": number for number in range(FIELDS)}] * 100}).encode()
    large, bomb = value_of(Format.JSON, 90), value_of(Format.JSON, 20_000)
    values = [full, large, bomb, large, None, bomb, large, b'{"x": 1}']
    converter, batches = table.convert(values)
    assert table.restored(batches) == values
    assert (converter.stats.converted, converter.stats.unconverted) == (5, 2)
    assert all(slots(batch) <= 1_000 + 2 * batch.num_rows for batch in batches)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_for_which_memory_is_short_keep_their_bytes(kind: Format) -> None:
    table, large = WideTable.of(kind, FIELDS), value_of(kind, 50)
    values = [value_of(kind, 1), large, value_of(kind, 2), None, value_of(kind, 3)]
    convert = WriterConversion.convert

    def out_of_memory(self: WriterConversion, payload: Any, slots_max: int) -> Any:
        if (payload.size == len(large)).any():
            raise pa.ArrowMemoryError("malloc of size 2147483648 failed")
        return convert(self, payload, slots_max)

    converter = table.converter(OnInvalid.STOP)
    with patch.object(WriterConversion, "convert", out_of_memory):
        batches = list(converter.convert([rows_of(values)]))
    assert [value for batch in batches for value in table.restored(batch)] == values
    kept = [value for batch in batches for value in batch.column("_stream").field("value").to_pylist()]
    assert kept == [None, large, None, None, None]
    assert converter.stats.errors() == (ConversionErrors(NO_MEMORY, 0, 1, 1),)


SCRIPT = """
import resource, sys
from pathlib import Path
import pyarrow as pa
from tests.harness.typed.wide_lists import WideTable, rows_of, value_of
from lakestream.data.table.write.parquet_writer import write_parquet
from lakestream.schemas.model import Format

kind = Format(sys.argv[1])
table = WideTable.of(kind, 900)
warm = rows_of([value_of(kind, 1)])
(made,) = table.converter().convert([warm])
table.restored(made)
pages = int(Path("/proc/self/statm").read_text().split()[0])
size = pages * resource.getpagesize() + 1_500_000_000
resource.setrlimit(resource.RLIMIT_AS, (size, size))

bomb, largest = value_of(kind, 150_000), value_of(kind, 9_000)
values = [bomb, b"?", bomb, largest, largest, value_of(kind, 1)]
converter = table.converter()
restored = []

def batches():
    for batch in converter.convert([rows_of(values)]):
        restored.extend(table.restored(batch))
        yield batch

files = list(write_parquet(batches(), str, columns=converter.columns))
assert restored == values
print(converter.stats.converted, converter.stats.unconverted, [error.reason for error in converter.stats.errors()])
"""


@pytest.mark.parametrize("kind", FORMATS)
def test_values_of_a_hundred_kilobytes_do_not_take_gigabytes(kind: Format) -> None:
    """With 135 million slots in each of two values, which is beyond the limit, and 8 million in two more."""
    command = [sys.executable, "-c", SCRIPT, kind.value]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3 3 "), done.stdout
    assert TOO_MANY in done.stdout
