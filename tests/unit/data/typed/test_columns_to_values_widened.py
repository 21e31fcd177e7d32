"""Restoring values from columns that were widened for another writer schema with rows in the same file."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.harness.pipeline.schema_topic import encoded, record

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.columns_to_values import TypedRows, columns_to_values
from lakestream.errors import Corrupt
from lakestream.schemas.writer_schema import ColumnBinding, WriterSchema

SMALL, LARGE = 7, 2**40


def _decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0}


def _array(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": kind}


def _writer(number: int, kind: Any, bound: ColumnBinding) -> WriterSchema:
    text = json.dumps(record(("n", kind)))
    return WriterSchema(number, "AVRO", text, schema_id=number, framed=True, columns=(bound,))


def _restored(narrow: Any, wide: Any, column: Any, numbers: Sequence[int], bound: ColumnBinding) -> list[bytes | None]:
    writers = {1: _writer(1, narrow, bound), 2: _writer(2, wide, bound)}
    raw = ByteSpans.of(pa.nulls(len(column), pa.binary()))
    rows = TypedRows({16: column}, np.arange(len(column)), np.array(numbers), raw, None)
    found = columns_to_values(rows, writers, "a file")
    return [
        pa.foreign_buffer(int(at), int(size)).to_pybytes() for at, size in zip(found.address, found.size, strict=True)
    ]


@pytest.mark.parametrize(
    ("narrow", "wide", "kind", "values", "bound"),
    [
        ("int", "long", pa.int64(), [SMALL, SMALL, LARGE], ColumnBinding(16)),
        (
            _decimal(4),
            _decimal(20),
            pa.decimal128(20, 0),
            [Decimal(SMALL), Decimal(SMALL), Decimal(LARGE)],
            ColumnBinding(16),
        ),
        (
            _array("int"),
            _array("long"),
            pa.list_(pa.int64()),
            [[SMALL], [], [LARGE, 1]],
            ColumnBinding(16, (ColumnBinding(17),)),
        ),
        ("float", "double", pa.float64(), [0.5, 1.5, 1e300], ColumnBinding(16)),
    ],
    ids=["int", "decimal", "list", "float"],
)
def test_rows_are_restored_when_other_rows_exceed_the_type(
    narrow: Any, wide: Any, kind: Any, values: list[Any], bound: ColumnBinding
) -> None:
    """Most rows have the narrow writer schema, so the other rows are masked after reading instead of before."""
    expected = [
        encoded(record(("n", narrow if number == 1 else wide)), {"n": value}, number)
        for number, value in zip((1, 1, 2), values, strict=True)
    ]
    assert _restored(narrow, wide, pa.array(values, kind), [1, 1, 2], bound) == expected


def test_restoring_fails_when_a_changed_row_exceeds_the_type() -> None:
    with pytest.raises(Corrupt, match="cannot be read as int"):
        _restored("int", "long", pa.array([SMALL, LARGE]), [1, 1], ColumnBinding(16))
