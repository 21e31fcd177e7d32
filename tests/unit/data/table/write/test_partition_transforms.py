"""Transforms, compared with pyiceberg for each value, and with the hashes in Iceberg's specification."""

import math
import random
import uuid
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from lakestream.data.table.arrow.types import primitive_type
from lakestream.data.table.write.partition_transforms import stored_values, transformed
from lakestream.schemas.layout_terms import Transform
from lakestream.schemas.types import Kind, Primitive

LUCK = random.Random(7)
EPOCH = datetime(1970, 1, 1)


def _times() -> list[datetime]:
    some = [EPOCH + timedelta(microseconds=LUCK.randint(-(10**16), 10**17)) for _ in range(200)]
    edges = [EPOCH - timedelta(microseconds=1), EPOCH, datetime(1969, 12, 31), datetime(1600, 2, 29), datetime(1, 1, 1)]
    return [*some, *edges, datetime(9999, 12, 31, 23, 59, 59, 999_999)]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    top = 10**precision - 1
    numbers = [0, 1, -1, 127, 128, -128, -129, 255, 256, -256, -257, 2**31, -(2**31), 2**63, -(2**63) - 1, top]
    numbers += [LUCK.randint(-top + 10, top) for _ in range(100)]
    with localcontext(prec=60):
        return [Decimal(number).scaleb(-scale) for number in numbers if abs(number) <= top]


VALUES: dict[Primitive, tuple[IcebergType, list[Any]]] = {
    Primitive(Kind.BOOLEAN): (BooleanType(), [True, False]),
    Primitive(Kind.FLOAT): (FloatType(), [0.0, -1.5, math.inf]),
    Primitive(Kind.DOUBLE): (DoubleType(), [0.0, -1.5, math.inf]),
    Primitive(Kind.INT): (IntegerType(), [0, 1, -1, 9, 10, -10, 34, 2**31 - 1, -(2**31) + 100]),
    Primitive(Kind.LONG): (
        LongType(),
        [0, 1, -1, -11, 2**62, -(2**62), *(LUCK.randint(-(2**60), 2**60) for _ in range(99))],
    ),
    Primitive(Kind.DATE): (DateType(), [one.date() for one in _times()]),
    Primitive(Kind.TIME): (TimeType(), [time(), time(22, 31, 8), time(23, 59, 59, 999_999)]),
    Primitive(Kind.TIMESTAMP): (TimestampType(), _times()),
    Primitive(Kind.TIMESTAMPTZ): (TimestamptzType(), [one.replace(tzinfo=UTC) for one in _times()]),
    Primitive(Kind.STRING): (StringType(), ["", "a", "abc", "abcd", "iceberg", "äöü€", "\N{GRINNING FACE}xyz" * 3]),
    Primitive(Kind.BINARY): (BinaryType(), [b"", b"\0", b"\0\1\2\3", bytes(range(256))]),
    Primitive(Kind.FIXED, length=5): (FixedType(5), [b"abcde", b"\0" * 5]),
    Primitive(Kind.UUID): (UUIDType(), [uuid.UUID(int=LUCK.getrandbits(128)) for _ in range(20)]),
    Primitive(Kind.DECIMAL, precision=9, scale=2): (DecimalType(9, 2), _decimals(9, 2)),
    Primitive(Kind.DECIMAL, precision=38, scale=0): (DecimalType(38, 0), _decimals(38, 0)),
    Primitive(Kind.DECIMAL, precision=30, scale=10): (DecimalType(30, 10), _decimals(30, 10)),
}
TRANSFORMS = ["identity", "bucket[1]", "bucket[16]", "bucket[1000003]", "truncate[1]", "truncate[3]", "truncate[10]"]
TRANSFORMS += ["year", "month", "day", "hour", "void"]


def _array(kind: Primitive, values: list[Any]) -> Any:
    if kind.kind is Kind.UUID:
        raw = [None if value is None else value.bytes for value in values]
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))
    return pa.array(values, primitive_type(kind))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_of_every_type_equal_those_of_pyiceberg(kind: Primitive, name: str) -> None:
    transform = Transform.of(name)
    assert transform is not None
    iceberg_type, values = VALUES[kind]
    oracle = parse_transform(name)
    assert transform.accepts(kind) == oracle.can_transform(iceberg_type)
    if not transform.accepts(kind):
        return
    apply = oracle.transform(iceberg_type)
    values = [None, *values, None]
    with localcontext(prec=60):
        expected = _array(transform.result(kind), [apply(value) for value in values])
    for array in (_array(kind, values), _array(kind, [values[1], *values]).slice(1)):
        found = transformed(array, kind, transform)
        assert found.to_pylist() == stored_values(expected, transform.result(kind)).to_pylist()


def test_views_are_transformed_like_plain_columns() -> None:
    values = [None, b"", b"\0\1\2\3", b"something that is longer than a view"]
    plain = pa.array(values, pa.binary())
    for name in ("identity", "bucket[7]", "truncate[2]"):
        transform, kind = Transform.of(name), Primitive(Kind.BINARY)
        assert transform is not None
        found = transformed(plain.cast(pa.binary_view()), kind, transform)
        assert found.to_pylist() == transformed(plain, kind, transform).to_pylist()


def test_identity_keeps_nan_and_negative_zero() -> None:
    found = transformed(pa.array([math.nan, None, -0.0]), Primitive(Kind.DOUBLE), Transform("identity")).to_pylist()
    assert math.isnan(found[0])
    assert found[1] is None
    assert math.copysign(1, found[2]) == -1


HASHES: list[tuple[Primitive, Any, int]] = [
    (Primitive(Kind.INT), 34, 2017239379),
    (Primitive(Kind.LONG), 34, 2017239379),
    (Primitive(Kind.DATE), date(2017, 11, 16), -653330422),
    (Primitive(Kind.TIME), time(22, 31, 8), -662762989),
    (Primitive(Kind.TIMESTAMP), datetime(2017, 11, 16, 22, 31, 8), -2047944441),
    (Primitive(Kind.TIMESTAMP), datetime(2017, 11, 16, 22, 31, 8, 1), -1207196810),
    (Primitive(Kind.STRING), "iceberg", 1210000089),
    (Primitive(Kind.UUID), uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7"), 1488055340),
    (Primitive(Kind.FIXED, length=4), b"\0\1\2\3", -188683207),
    (Primitive(Kind.BINARY), b"\0\1\2\3", -188683207),
    (Primitive(Kind.DECIMAL, precision=9, scale=2), Decimal("14.20"), -500754589),
]


@pytest.mark.parametrize(("kind", "value", "expected"), HASHES, ids=str)
def test_buckets_follow_the_hashes_of_the_specification(kind: Primitive, value: Any, expected: int) -> None:
    most = 2**31 - 1
    found = transformed(_array(kind, [value]), kind, Transform("bucket", most)).to_pylist()
    assert found == [(expected & most) % most]


@pytest.mark.parametrize("name", ["bucket[7]", "truncate[1]", "truncate[3]"])
def test_string_that_is_not_utf8_does_not_panic(name: str) -> None:
    transform = Transform.of(name)
    assert transform is not None
    offsets, data = pa.py_buffer(np.array([0, 1, 4], np.int32)), pa.py_buffer(b"\xf0abc")
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    if transform.name == "bucket":
        assert len(transformed(array, Primitive(Kind.STRING), transform)) == 2
    else:
        with pytest.raises(pa.ArrowInvalid):
            transformed(array, Primitive(Kind.STRING), transform)


def test_day_rounds_down_in_the_last_second_before_1970() -> None:
    array = pa.array([-1, -999_999, -1_000_000, -86_400_000_000, -86_400_000_001]).cast(pa.timestamp("us"))
    found = transformed(array, Primitive(Kind.TIMESTAMP), Transform("day"))
    assert found.to_pylist() == [-1, -1, -1, -1, -2]
