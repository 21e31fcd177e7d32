"""Against pyiceberg, value by value, and against the hashes that Iceberg's specification prints."""

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

from lakestream.data.table.arrow import primitive_type
from lakestream.data.table.kernels_hash import hash_bytes, hash_decimals, hash_longs
from lakestream.data.table.located import Located
from lakestream.data.table.transforms import as_kept, decimal_words, transformed
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import Transform

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
def test_every_type_as_pyiceberg_does_it(kind: Primitive, name: str) -> None:
    transform = Transform.of(name)
    assert transform is not None
    iceberg_type, values = VALUES[kind]
    oracle = parse_transform(name)
    assert transform.takes(kind) == oracle.can_transform(iceberg_type)
    if not transform.takes(kind):
        return
    apply = oracle.transform(iceberg_type)
    values = [None, *values, None]
    with localcontext(prec=60):
        wanted = _array(transform.result(kind), [apply(value) for value in values])
    for array in (_array(kind, values), _array(kind, [values[1], *values]).slice(1)):
        found = transformed(array, kind, transform)
        assert found.to_pylist() == as_kept(wanted, transform.result(kind)).to_pylist()


def test_columns_of_views_are_taken_too() -> None:
    values = [None, b"", b"\0\1\2\3", b"something that is longer than a view"]
    plain = pa.array(values, pa.binary())
    for name in ("identity", "bucket[7]", "truncate[2]"):
        transform, kind = Transform.of(name), Primitive(Kind.BINARY)
        assert transform is not None
        found = transformed(plain.cast(pa.binary_view()), kind, transform)
        assert found.to_pylist() == transformed(plain, kind, transform).to_pylist()


def test_numbers_that_are_none_stay_what_they_are() -> None:
    found = transformed(pa.array([math.nan, None, -0.0]), Primitive(Kind.DOUBLE), Transform("identity")).to_pylist()
    assert math.isnan(found[0])
    assert found[1] is None
    assert math.copysign(1, found[2]) == -1


def test_the_hashes_of_the_specification() -> None:
    out = np.zeros(5, np.int32)
    times = [
        34,
        (date(2017, 11, 16) - date(1970, 1, 1)).days,
        81_068_000_000,
        1_510_871_468_000_000,
        1_510_871_468_000_001,
    ]
    hash_longs(np.array(times), out)
    assert out.tolist() == [2017239379, -653330422, -662762989, -2047944441, -1207196810]
    pieces = [b"iceberg", uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes, b"\0\1\2\3"]
    located, out = Located.of(pa.array(pieces)), np.zeros(3, np.int32)
    hash_bytes(located.address, located.size, out)
    assert out.tolist() == [1210000089, 1488055340, -188683207]
    out = np.zeros(1, np.int32)
    hash_decimals(decimal_words(pa.array([Decimal("14.20")], pa.decimal128(9, 2))).copy(), out)
    assert out.tolist() == [-500754589]
