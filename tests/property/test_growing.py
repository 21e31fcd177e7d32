"""Column evolution with any shapes: columns are only added, ids are stable, and a repeated shape changes nothing."""

import os
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.catalog.table_metadata.schemas import check_schema
from lakestream.catalog.topic_table.columns import iceberg_schema
from lakestream.schemas.column_evolution import BoundShape, EvolvedColumns, evolve_columns
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
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type
from lakestream.schemas.writer_schema import ColumnBinding

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


def evolve_all(shapes: list[Struct], known: list[BoundShape] | None = None) -> EvolvedColumns:
    """Evolves the columns with one shape after the other. Later ones see the bindings of earlier ones."""
    made = EvolvedColumns(STREAM, (), (), 0)
    known = [] if known is None else known
    for shape in shapes:
        made = evolve_columns(made.columns, shape, made.next_id, known)
        known.append(BoundShape(shape, made.bindings))
    return made


def ids(bindings: tuple[ColumnBinding | None, ...]) -> list[int]:
    return [found for one in bindings if one for found in (one.field_id, *ids(one.children))]


def without_names(kind: ColumnType) -> object:
    """Returns a type without names, ids and order."""
    match kind:
        case Fields(fields):
            return {one.name: without_names(one.type) for one in fields}
        case ListColumn() | MapColumn():
            return (type(kind), *(without_names(one.type) for one in inner_columns(kind)))
        case other:
            return str(other)


@settings(max_examples=EXAMPLES)
@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_columns_are_only_added_with_new_ids(shapes: list[Struct]) -> None:
    known: list[BoundShape] = []
    made = evolve_all(shapes[:-1], known)
    after = evolve_columns(made.columns, shapes[-1], made.next_id, known)
    before_ids, after_ids = ([one.field_id for one in all_columns(some)] for some in (made.columns, after.columns))
    assert len(set(after_ids)) == len(after_ids), "ids are unique"
    assert set(before_ids) <= set(after_ids), "no column is removed"
    assert all(made.next_id <= one < after.next_id for one in set(after_ids) - set(before_ids)), "no id is reused"
    assert after.columns[-1] == STREAM[0], "the _stream column is unchanged and last"
    check_schema({"fields": iceberg_fields(after.columns)}, 2)
    for one in all_columns([Column(0, "", Fields(after.columns))]):
        names = [inner.name.casefold() for inner in inner_columns(one.type)]
        assert len(set(names)) == len(names), "names differ without case, which engines fold"
        assert not isinstance(one.type, Fields) or one.type.fields
    bound = ids(after.bindings)
    assert len(set(bound)) == len(bound), "no column is bound to two fields"
    assert set(bound) <= set(after_ids)
    assert (None in after.bindings) <= bool(after.reasons)


@settings(max_examples=EXAMPLES)
@given(st.lists(SHAPES, min_size=1, max_size=3))
def test_columns_are_unchanged_when_a_shape_is_repeated(shapes: list[Struct]) -> None:
    known: list[BoundShape] = []
    made = evolve_all(shapes, known)
    for shape, before in zip(shapes, known, strict=True):
        again = evolve_columns(made.columns, shape, made.next_id, known)
        assert (again.columns, again.next_id) == (made.columns, made.next_id)
        assert set(ids(before.bindings)) <= set(ids(again.bindings)), "a field without a column may have one now"
    assert again.bindings == made.bindings


@settings(max_examples=EXAMPLES)
@given(SHAPES, SHAPES)
def test_columns_do_not_depend_on_the_order_of_compatible_shapes(one: Struct, other: Struct) -> None:
    one, other = _plainly_named(one), _plainly_named(other)
    first, second = evolve_all([one, other]), evolve_all([other, one])
    if not first.reasons and not second.reasons and not evolve_all([one]).reasons and not evolve_all([other]).reasons:
        assert without_names(Fields(first.columns)) == without_names(Fields(second.columns))


def _plainly_named(shape: Struct) -> Struct:
    """Gives fields unambiguous names: of two names that collide, only the first is kept by the code."""
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
