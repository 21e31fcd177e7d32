"""Random shapes, and random values of them for pyarrow."""

import datetime
import decimal
from typing import Any

from hypothesis import strategies as st

from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type

TEXTS = st.text(max_size=5) | st.text(min_size=11, max_size=30)
BYTES = st.binary(max_size=14) | st.binary(min_size=60, max_size=80)
DAY_US = 86_400_000_000


@st.composite
def primitives(draw: st.DrawFn) -> Primitive:
    match draw(st.sampled_from(Kind)):
        case Kind.FIXED:
            return Primitive(Kind.FIXED, length=draw(st.integers(1, 20)))
        case Kind.DECIMAL:
            precision = draw(st.integers(1, 38))
            return Primitive(Kind.DECIMAL, precision=precision, scale=draw(st.integers(0, precision)))
        case kind:
            return Primitive(kind)


def types(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def made_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        keys = st.just(Primitive(Kind.STRING))
        return structs(inner) | st.builds(ListOf, inner) | st.builds(MapOf, keys, inner)

    return st.recursive(leaves, made_of, max_leaves=6)


def structs(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Struct]:
    return st.lists(inner, min_size=1, max_size=4).map(
        lambda found: Struct(tuple(Field(f"f{place}", kind) for place, kind in enumerate(found)))
    )


SHAPES = structs(types(primitives()))


def values(kind: Type) -> st.SearchStrategy[Any]:
    """Values that are not null at the top level."""
    match kind:
        case Struct(fields):
            return st.fixed_dictionaries({field.name: st.none() | values(field.type) for field in fields})
        case ListOf(element):
            return st.lists(st.none() | values(element), max_size=3)
        case MapOf(key, value):
            entries = st.tuples(values(key), st.none() | values(value))
            return st.lists(entries, max_size=3, unique_by=lambda entry: entry[0])
        case Primitive():
            return _leaves(kind)


def _leaves(kind: Primitive) -> st.SearchStrategy[Any]:
    match kind.kind:
        case Kind.BOOLEAN:
            return st.booleans()
        case Kind.INT:
            return st.integers(-(2**31), 2**31 - 1)
        case Kind.LONG:
            return st.integers(-(2**63), 2**63 - 1)
        case Kind.FLOAT:
            return st.floats(width=32, allow_nan=False)
        case Kind.DOUBLE:
            return st.floats(allow_nan=False)
        case Kind.DATE:
            return st.dates()
        case Kind.TIME:
            return st.times()
        case Kind.TIMESTAMP:
            return st.datetimes()
        case Kind.TIMESTAMPTZ:
            return st.datetimes(timezones=st.just(datetime.UTC))
        case Kind.STRING:
            return TEXTS
        case Kind.UUID:
            return st.binary(min_size=16, max_size=16)
        case Kind.FIXED:
            return st.binary(min_size=kind.length, max_size=kind.length)
        case Kind.BINARY:
            return BYTES
        case Kind.DECIMAL:
            digits = 10**kind.precision - 1
            return st.integers(-digits, digits).map(lambda found: _decimal(found, kind.scale))


def _decimal(unscaled: int, scale: int) -> decimal.Decimal:
    sign, digits = int(unscaled < 0), tuple(int(digit) for digit in str(abs(unscaled)))
    return decimal.Decimal((sign, digits, -scale))
