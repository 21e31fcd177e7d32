"""Columns that were widened for one writer are read back for another, whose rows stand beside those of the first."""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from tests.unit.pipeline.typed_world import encoded, record

from lakestream.data.table.located import Located
from lakestream.data.typed.restoring import TypedRows, restored
from lakestream.errors import Corrupt
from lakestream.schemas.writers import Bound, Writer

SMALL, LARGE = 7, 2**40


def _decimal(precision: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": 0}


def _array(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": kind}


def _writer(number: int, kind: Any, bound: Bound) -> Writer:
    text = json.dumps(record(("n", kind)))
    return Writer(number, "AVRO", text, schema_id=number, framed=True, columns=(bound,))


def _restored(narrow: Any, wide: Any, column: Any, numbers: Sequence[int], bound: Bound) -> list[bytes | None]:
    writers = {1: _writer(1, narrow, bound), 2: _writer(2, wide, bound)}
    raw = Located.of(pa.nulls(len(column), pa.binary()))
    rows = TypedRows({16: column}, np.arange(len(column)), np.array(numbers), raw, None)
    found = restored(rows, writers, "a file")
    return [
        pa.foreign_buffer(int(at), int(size)).to_pybytes() for at, size in zip(found.address, found.size, strict=True)
    ]


@pytest.mark.parametrize(
    ("narrow", "wide", "kind", "values", "bound"),
    [
        ("int", "long", pa.int64(), [SMALL, SMALL, LARGE], Bound(16)),
        (_decimal(4), _decimal(20), pa.decimal128(20, 0), [Decimal(SMALL), Decimal(SMALL), Decimal(LARGE)], Bound(16)),
        (_array("int"), _array("long"), pa.list_(pa.int64()), [[SMALL], [], [LARGE, 1]], Bound(16, (Bound(17),))),
        ("float", "double", pa.float64(), [0.5, 1.5, 1e300], Bound(16)),
    ],
    ids=["int", "decimal", "list", "float"],
)
def test_rows_of_others_need_not_fit(narrow: Any, wide: Any, kind: Any, values: list[Any], bound: Bound) -> None:
    """Most of the rows are the narrow writer's, so the others are left out only when all were read."""
    expected = [
        encoded(record(("n", narrow if number == 1 else wide)), {"n": value}, number)
        for number, value in zip((1, 1, 2), values, strict=True)
    ]
    assert _restored(narrow, wide, pa.array(values, kind), [1, 1, 2], bound) == expected


def test_an_own_row_that_somebody_changed_is_said() -> None:
    with pytest.raises(Corrupt, match="cannot be read as int"):
        _restored("int", "long", pa.array([SMALL, LARGE]), [1, 1], Bound(16))
