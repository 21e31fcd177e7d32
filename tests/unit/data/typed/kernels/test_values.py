"""Kernels for whole values."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.kernels.values import differing


def test_values_differ_when_any_byte_differs() -> None:
    ones: list[bytes | None] = [None, None, b"", b""]
    others: list[bytes | None] = [None, b"", b"", b"x"]
    for size in range(1, 40):
        whole = bytes(range(size))
        ones += [whole] * (size + 1)
        others += [whole, *(whole[:place] + b"\xff" + whole[place + 1 :] for place in range(size))]
    one, other = (ByteSpans.of(pa.array(values, pa.binary())) for values in (ones, others))
    found = np.full(len(ones), 7, np.uint8)
    differing(one.address, one.size, other.address, other.size, found)
    assert found.tolist() == [int(mine != theirs) for mine, theirs in zip(ones, others, strict=True)]
