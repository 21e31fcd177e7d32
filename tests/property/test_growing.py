"""Columns and shapes, any of them: a table only ever grows, ids stay, and what came once need not come again."""

import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.catalog.schemas import check_schema
from lakestream.catalog.topic_layout import iceberg_schema
from lakestream.schemas.columns import (
    Column,
    ColumnType,
    Fields,
    ListColumn,
    MapColumn,
    all_columns,
    columns_of,
    iceberg_fields,
    inner_columns,
)
from lakestream.schemas.growing import Grown, Known, grown
from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct, Type
from lakestream.schemas.writers import Bound

EXAMPLES = 300 if os.environ.get("SOAK") else 80
STREAM = columns_of(iceberg_schema())[1:]

PLAIN = [Primitive(kind) for kind in Kind if kind not in (Kind.FIXED, Kind.DECIMAL)]
PRIMITIVES = st.sampled_from(
    [
        *PLAIN,
        Primitive(Kind.FIXED, length=4),
        *(Primitive(Kind.DECIMAL, precision=p, scale=s) for p in (5, 20) for s in (0, 2)),
    ]
)
NAMES = st.sampled_from(["a", "A", "a_", "A_", "a__", "b", "c.d", "_stream", "_key", "value", "ä", ""])


def _structs(inner: st.SearchStrategy[Type]) -> st.SearchStrategy[Struct]:
    fields = st.builds(Field, NAMES, inner)
    return st.lists(fields, max_size=6, unique_by=lambda one: one.name).map(lambda some: Struct(tuple(some)))


TYPES: st.SearchStrategy[Type] = st.recursive(
    PRIMITIVES,
    lambda inner: _structs(inner) | st.builds(ListOf, inner) | st.builds(MapOf, PRIMITIVES, inner),
    max_leaves=8,
)
SHAPES = _structs(TYPES)


def grow(shapes: list[Struct], known: list[Known] | None = None) -> Grown:
    """One after the other; each is known to those behind it."""
    made = Grown(STREAM, (), (), 0)
    known = [] if known is None else known
    for shape in shapes:
        made = grown(made.columns, shape, made.next_id, known)
        known.append(Known(shape, made.bounds))
    return made


def ids(bounds: tuple[Bound | None, ...]) -> list[int]:
    return [found for one in bounds if one for found in (one.field_id, *ids(one.children))]


def kept(kind: ColumnType) -> object:
    """What a type can hold, but for names, ids and order."""
    match kind:
        case Fields(fields):
            return {one.name: kept(one.type) for one in fields}
        case ListColumn() | MapColumn():
            return (type(kind), *(kept(one.type) for one in inner_columns(kind)))
        case other:
            return str(other)


@settings(max_examples=EXAMPLES)
@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_a_table_only_grows(shapes: list[Struct]) -> None:
    known: list[Known] = []
    made = grow(shapes[:-1], known)
    after = grown(made.columns, shapes[-1], made.next_id, known)
    before_ids, after_ids = ([one.field_id for one in all_columns(some)] for some in (made.columns, after.columns))
    assert len(set(after_ids)) == len(after_ids), "no id twice"
    assert set(before_ids) <= set(after_ids), "no column goes"
    assert all(made.next_id <= one < after.next_id for one in set(after_ids) - set(before_ids)), "no id again"
    assert after.columns[-1] == STREAM[0], "the stream stays as it is, and last"
    check_schema({"fields": iceberg_fields(after.columns)}, 2)
    for one in all_columns([Column(0, "", Fields(after.columns))]):
        names = [inner.name.casefold() for inner in inner_columns(one.type)]
        assert len(set(names)) == len(names), "engines fold case"
        assert not isinstance(one.type, Fields) or one.type.fields
    bound = ids(after.bounds)
    assert len(set(bound)) == len(bound), "no column is that of two fields"
    assert set(bound) <= set(after_ids)
    assert (None in after.bounds) <= bool(after.reasons)


@settings(max_examples=EXAMPLES)
@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_what_came_once_changes_nothing_when_it_comes_again(shapes: list[Struct]) -> None:
    known: list[Known] = []
    made = grow(shapes, known)
    for shape, before in zip(shapes, known, strict=True):
        again = grown(made.columns, shape, made.next_id, known)
        assert (again.columns, again.next_id) == (made.columns, made.next_id)
        assert set(ids(before.bounds)) <= set(ids(again.bounds)), "what had no column may have one by now"
    assert again.bounds == made.bounds


@settings(max_examples=EXAMPLES)
@given(SHAPES, SHAPES)
def test_the_order_of_shapes_does_not_matter_where_all_fit(one: Struct, other: Struct) -> None:
    one, other = _plainly_named(one), _plainly_named(other)
    first, second = grow([one, other]), grow([other, one])
    if not first.reasons and not second.reasons and not grow([one]).reasons and not grow([other]).reasons:
        assert kept(Fields(first.columns)) == kept(Fields(second.columns))


def _plainly_named(shape: Struct) -> Struct:
    """Of two names that evade each other the first keeps its own."""
    named = [replace(one, name=f"f{place}") for place, one in enumerate(shape.fields)]
    return Struct(tuple(replace(one, type=_plain(one.type)) for one in named))


def _plain(kind: Type) -> Type:
    match kind:
        case Struct():
            return _plainly_named(kind)
        case ListOf(element):
            return ListOf(_plain(element))
        case MapOf(key, value):
            return MapOf(key, _plain(value))
        case Primitive():
            return kind
