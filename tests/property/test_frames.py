"""Round trips of frames and Arrow columns, for any type and values."""

import decimal
import os
import uuid
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.typed.random_types import SHAPES, values

from lakestream.data.typed.arrow import BuffersFromArrow, arrow_type, from_arrow, to_arrow
from lakestream.data.typed.column_buffers import Layout
from lakestream.errors import Corrupt
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct

EXAMPLES = 500 if os.environ.get("SOAK") else 25
DATABASE_FREE = settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))


@st.composite
def columns(draw: st.DrawFn) -> tuple[Struct, list[Any]]:
    shape = draw(SHAPES)
    return shape, draw(st.lists(st.none() | values(shape), max_size=6))


def framed(array: Any, shape: Struct) -> BuffersFromArrow:
    return from_arrow(array, Layout.of(shape))


def written(found: BuffersFromArrow, *, views: bool = False, rows: Any = None) -> Any:
    kind = arrow_type(found.buffers.layout.shape, views=views)
    made = to_arrow(found.buffers, kind, rows=rows, held=found.held)
    made.validate(full=True)
    return made


def plain(array: Any) -> list[Any]:
    return [_without_uuids(row) for row in array.to_pylist()]


def _without_uuids(value: Any) -> Any:
    match value:
        case uuid.UUID():
            return value.bytes
        case dict():
            return {name: _without_uuids(one) for name, one in value.items()}
        case list() | tuple():
            return type(value)(_without_uuids(one) for one in value)
    return value


def stored(kind: Any, *, large: bool = False) -> Any:
    """Returns the type as pyarrow can build it from Python values, and as other readers would have it."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, stored(field.type, large=large)) for field in kind])
    if pa.types.is_list(kind):
        return (pa.large_list if large else pa.list_)(stored(kind.value_type, large=large))
    if pa.types.is_map(kind):
        return pa.map_(stored(kind.key_type, large=large), stored(kind.item_type, large=large))
    if pa.types.is_string(kind) and large:
        return pa.large_string()
    if pa.types.is_binary(kind) and large:
        return pa.large_binary()
    return kind.storage_type if isinstance(kind, pa.UuidType) else kind


@DATABASE_FREE
@given(columns())
def test_frames_round_trip(given_: tuple[Struct, list[Any]]) -> None:
    shape, rows = given_
    array = pa.array(rows, stored(arrow_type(shape)))
    found = framed(array, shape)
    assert len(found.buffers) == len(rows)
    assert plain(written(found)) == plain(array)
    assert plain(written(framed(written(found, views=True), shape))) == plain(array)


@DATABASE_FREE
@given(columns(), st.randoms())
def test_slices_and_selected_rows_round_trip(given_: tuple[Struct, list[Any]], chance: Any) -> None:
    shape, rows = given_
    array = pa.array(rows, stored(arrow_type(shape)))
    start = chance.randint(0, len(rows))
    part = array.slice(start, chance.randint(0, len(rows) - start))
    found = framed(part, shape)
    assert plain(written(found)) == plain(part)
    picked = [chance.randrange(len(part)) for _ in range(5)] if len(part) else []
    for views in (False, True):
        made = written(found, views=views, rows=np.array(picked, np.int64))
        assert plain(made) == [plain(part)[row] for row in picked]


@DATABASE_FREE
@given(columns())
def test_other_arrow_types_of_columns_round_trip(given_: tuple[Struct, list[Any]]) -> None:
    shape, rows = given_
    array = pa.array(rows, stored(arrow_type(shape)))
    assert plain(written(framed(pa.array(rows, stored(array.type, large=True)), shape))) == plain(array)


def test_dictionaries_and_times_of_other_units() -> None:
    texts = pa.array(["a", None, "a", "long enough for a view"]).dictionary_encode()
    times = pa.array([1, 2, None, 4], pa.timestamp("ms", tz="UTC"))
    fixed = pa.array([b"0123456789abcdef", None, b"0123456789abcdeg", b"0123456789abcdeh"])
    fields = [("t", Kind.STRING), ("w", Kind.TIMESTAMPTZ), ("u", Kind.UUID)]
    shape = Struct(tuple(Field(name, Primitive(kind)) for name, kind in fields))
    array = pa.StructArray.from_arrays([texts, times, fixed], ["t", "w", "u"])
    made = written(framed(array, shape))
    assert made.field("t").to_pylist() == texts.to_pylist()
    assert made.field("w").to_pylist() == times.to_pylist()
    assert made.field("u").storage.to_pylist() == fixed.to_pylist()


def test_lists_below_a_null_have_no_elements() -> None:
    """Arrow may have hidden elements there; a frame must not, and the restored list has none."""
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), pa.array([1, 2, 3], pa.int32()))
    array = pa.StructArray.from_arrays([hidden], ["l"], mask=pa.array([True, False]))
    shape = Struct((Field("l", ListOf(Primitive(Kind.INT))),))
    found = framed(array, shape)
    assert plain(written(found)) == [None, {"l": [3]}]
    assert found.buffers.valid[found.buffers.base[1] : found.buffers.base[1] + 2].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("array", "kind", "message"),
    [
        (pa.array(["x"]), Primitive(Kind.INT), "column c is string, which cannot be read as int"),
        (pa.array([1]), Primitive(Kind.STRING), "cannot be read as string"),
        (pa.array([b"x"]), Primitive(Kind.UUID), "not all values have 16 bytes"),
        (pa.array([b"x"], pa.binary(1)), Primitive(Kind.FIXED, length=2), "not all values have 2 bytes"),
        (pa.array([[1]]), MapOf(Primitive(Kind.STRING), Primitive(Kind.INT)), "cannot be read as a map"),
        (pa.array([{"x": 1}]), Struct(()), "cannot be read as a struct"),
        (pa.array([2**40]), Primitive(Kind.INT), "column c is int64"),
        (pa.array([["x"]]), ListOf(Primitive(Kind.INT)), "column c[] is string"),
    ],
)
def test_error_names_a_column_of_another_type(array: Any, kind: Any, message: str) -> None:
    with pytest.raises(Corrupt) as caught:
        framed(pa.StructArray.from_arrays([array], ["c"]), Struct((Field("c", kind),)))
    assert message in str(caught.value)


@pytest.mark.parametrize("key", [Kind.STRING, Kind.INT, Kind.DECIMAL])
def test_map_with_a_duplicate_key_becomes_null(key: Kind) -> None:
    """DuckDB fails on a table that has such a map."""

    def entries(*numbers: int) -> list[Any]:
        made = {Kind.STRING: str, Kind.INT: int, Kind.DECIMAL: decimal.Decimal}[key]
        return [(made(number), number) for number in numbers]

    kind = Primitive(key, precision=20) if key is Kind.DECIMAL else Primitive(key)
    shape = Struct((Field("m", MapOf(kind, Primitive(Kind.INT))), Field("i", Primitive(Kind.INT))))
    maps = [entries(1, 2), entries(3, 4, 3), None, [], entries(*range(50)), entries(*range(50), 49), entries(7)]
    array = pa.array([{"m": one, "i": 5} for one in maps], arrow_type(shape))
    found = plain(written(framed(array, shape)))
    wanted = [one if place not in (1, 5) else None for place, one in enumerate(maps)]
    assert found == [{"m": one, "i": 5} for one in wanted]
    for views in (False, True):
        picked = written(framed(array, shape), views=views, rows=np.array([5, 4, 1, 0]))
        assert plain(picked) == [{"m": wanted[row], "i": 5} for row in (5, 4, 1, 0)]


def test_colliding_map_keys_cost_no_extra_time() -> None:
    shape = Struct((Field("m", MapOf(Primitive(Kind.LONG), Primitive(Kind.INT))),))
    count = 1 << 17
    # Keys with equal lower bits of the product share a slot of the hash table.
    keys = pa.array((np.arange(count, dtype=np.int64) << 40).tolist(), pa.int64())
    values = pa.nulls(count, pa.int32())
    entries = pa.StructArray.from_arrays([keys, values], ["key", "value"])
    kind = arrow_type(shape).field(0).type
    maps = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.array([0, count], np.int32))], children=[entries])
    assert len(written(framed(pa.StructArray.from_arrays([maps], ["m"]), shape))) == 1
