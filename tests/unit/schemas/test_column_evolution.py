"""Columns that are added, widened and renamed for the shape of a schema, and fields that get no column."""

import time
from itertools import product

import pytest

from lakestream.catalog.topic_table import columns as topic_layout
from lakestream.schemas.column_evolution import (
    NOT_IN_DELTA,
    BoundShape,
    EvolvedColumns,
    evolve_columns,
    evolve_key_columns,
)
from lakestream.schemas.column_matching import FIRST_FREE_ID, NAME_MAX
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, columns_of, iceberg_fields, primitive_of
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct
from lakestream.schemas.writer_schema import ColumnBinding

INT, LONG, FLOAT, DOUBLE, STRING = (
    Primitive(kind) for kind in (Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.STRING)
)
STREAM = columns_of(topic_layout.iceberg_schema())[1:]
BINARY = columns_of(topic_layout.iceberg_schema())


def decimal(precision: int, scale: int) -> Primitive:
    return Primitive(Kind.DECIMAL, precision=precision, scale=scale)


def struct(**fields: Primitive | Struct | ListOf | MapOf) -> Struct:
    return Struct(tuple(Field(name, kind) for name, kind in fields.items()))


def named(columns: tuple[Column, ...]) -> dict[str, str]:
    return {column.name: _said(column) for column in columns}


def _said(column: Column) -> str:
    match column.type:
        case Fields(fields):
            return f"{column.field_id}<{', '.join(f'{one.name} {_said(one)}' for one in fields)}>"
        case ListColumn(element):
            return f"{column.field_id}[{_said(element)}]"
        case MapColumn(key, value):
            return f"{column.field_id}[{_said(key)}: {_said(value)}]"
        case kind:
            return f"{column.field_id}:{kind}"


def again(columns: tuple[Column, ...], shape: Struct, before: list[BoundShape] | None = None) -> EvolvedColumns:
    return evolve_columns(columns, shape, FIRST_FREE_ID + 100, before or [])


def test_first_free_id_is_the_one_after_the_stream_columns() -> None:
    assert FIRST_FREE_ID == topic_layout.FIRST_FREE_ID


def test_iceberg_schema_is_unchanged_after_parsing_and_printing() -> None:
    schema = topic_layout.iceberg_schema()
    assert iceberg_fields(columns_of(schema)) == schema["fields"]
    foreign = {
        "fields": [
            {"id": 1, "name": "a", "required": False, "type": "timestamp_ns", "doc": "x", "write-default": {"b": 1}},
            {
                "id": 2,
                "name": "m",
                "required": True,
                "type": {
                    "type": "map",
                    "key-id": 3,
                    "key": "string",
                    "value-id": 4,
                    "value": "decimal(9, 2)",
                    "value-required": True,
                },
            },
            {"id": 5, "name": "f", "required": False, "type": "fixed[7]"},
        ]
    }
    assert iceberg_fields(columns_of(foreign)) == foreign["fields"]


@pytest.mark.parametrize("text", ["decimal(9,2)", "decimal( 9 , 2 )"])
def test_decimal_is_parsed_with_any_whitespace(text: str) -> None:
    assert primitive_of(text) == decimal(9, 2)
    assert primitive_of("decimal") is None


def test_new_columns_are_inserted_before_stream() -> None:
    made = evolve_columns(STREAM, struct(a=INT, b=struct(c=STRING), d=ListOf(LONG), e=MapOf(STRING, DOUBLE)), 0)
    assert [column.name for column in made.columns] == ["a", "b", "d", "e", "_stream"]
    assert named(made.columns[:-1]) == {
        "a": "16:int",
        "b": "17<c 18:string>",
        "d": "19[20:long]",
        "e": "21[22:string: 23:double]",
    }
    assert made.bindings == (
        ColumnBinding(16),
        ColumnBinding(17, (ColumnBinding(18),)),
        ColumnBinding(19, (ColumnBinding(20),)),
        ColumnBinding(21, (ColumnBinding(22), ColumnBinding(23))),
    )
    assert made.next_id == 24
    assert not made.reasons
    assert not any(column.required for column in made.columns[:-1])


def test_columns_are_unchanged_when_the_shape_is_the_same() -> None:
    shape = struct(a=INT, b=struct(c=STRING), d=ListOf(struct(x=LONG)), e=MapOf(STRING, DOUBLE))
    first = evolve_columns(STREAM, shape, 0)
    second = evolve_columns(first.columns, shape, first.next_id)
    assert second == first


def test_new_fields_get_new_ids_and_existing_columns_are_kept() -> None:
    first = evolve_columns(STREAM, struct(a=INT, b=STRING), 0)
    second = evolve_columns(first.columns, struct(c=STRING, a=INT), first.next_id)
    assert named(second.columns[:-1]) == {"a": "16:int", "b": "17:string", "c": "18:string"}
    assert second.bindings == (ColumnBinding(18), ColumnBinding(16))


def test_columns_are_widened_but_never_narrowed() -> None:
    narrow = struct(a=INT, b=FLOAT, c=decimal(9, 2), l=ListOf(INT), m=MapOf(STRING, INT))
    wide = struct(a=LONG, b=DOUBLE, c=decimal(20, 2), l=ListOf(LONG), m=MapOf(STRING, LONG))
    first = evolve_columns(STREAM, narrow, 0)
    second = evolve_columns(first.columns, wide, first.next_id)
    assert second.bindings == first.bindings
    assert not second.reasons
    assert named(second.columns[:-1]) == {
        "a": "16:long",
        "b": "17:double",
        "c": "18:decimal(20, 2)",
        "l": "19[20:long]",
        "m": "21[22:string: 23:long]",
    }
    third = evolve_columns(second.columns, narrow, second.next_id)
    assert third == second


@pytest.mark.parametrize(
    ("there", "comes", "said"),
    [
        (INT, STRING, "field a is string, but column a is int"),
        (LONG, DOUBLE, "field a is double, but column a is long"),
        (decimal(9, 2), decimal(9, 3), "field a is decimal(9, 3), but column a is decimal(9, 2)"),
        (INT, struct(b=INT), "field a is a struct, but column a is int"),
        (ListOf(INT), ListOf(STRING), "field a.element is string, but column element is int"),
        (MapOf(INT, INT), MapOf(LONG, INT), "field a.key is long, but column a.key is int"),
        (MapOf(STRING, INT), MapOf(STRING, STRING), "field a.value is string, but column value is int"),
    ],
)
def test_field_has_no_column_but_a_reason_when_its_type_does_not_fit(
    there: Primitive | Struct | ListOf | MapOf, comes: Primitive | Struct | ListOf | MapOf, said: str
) -> None:
    first = evolve_columns(STREAM, struct(a=there, b=INT), 0)
    second = evolve_columns(first.columns, struct(b=INT, a=comes), first.next_id)
    assert second.bindings == (first.bindings[1], None)
    assert second.columns == first.columns
    assert second.next_id == first.next_id
    assert second.reasons == (said,)


def test_sibling_fields_keep_columns_when_one_field_does_not_fit() -> None:
    first = evolve_columns(STREAM, struct(a=struct(x=INT, y=INT)), 0)
    second = evolve_columns(first.columns, struct(a=struct(y=INT, x=STRING, z=INT)), first.next_id)
    assert second.bindings == (ColumnBinding(16, (ColumnBinding(18), None, ColumnBinding(19))),)
    assert second.reasons == ("field a.x is string, but column x is int",)


def test_field_is_bound_to_a_column_that_an_engine_added_with_an_underscore() -> None:
    """The column has the name of the field and a `_` at the end."""
    first = evolve_columns(STREAM, struct(a=INT), 0)
    known = [BoundShape(struct(a=INT), first.bindings)]
    assert again(first.columns, struct(a=STRING), known).bindings == (None,)
    added = (*first.columns, Column(50, "a_", STRING), Column(51, "a__", DOUBLE))
    found = evolve_columns(added, struct(a=STRING), 52, known)
    assert found.bindings == (ColumnBinding(50),)
    assert not found.reasons
    known.append(BoundShape(struct(a=STRING), found.bindings))
    for shape, bound in ((struct(a=STRING), 50), (struct(a=INT), 16), (struct(a=FLOAT), 51)):
        assert evolve_columns(added, shape, 52, known).bindings == (ColumnBinding(bound),)


def test_each_type_gets_a_column_when_adds_on_conflict_is_set() -> None:
    shapes = [struct(a=LONG), struct(a=DOUBLE), struct(a=STRING, b=ListOf(LONG)), struct(b=ListOf(STRING))]
    made, known = EvolvedColumns(STREAM, (), (), 0), list[BoundShape]()
    for shape in shapes:
        made = evolve_columns(made.columns, shape, made.next_id, known, adds_on_conflict=True)
        assert not made.reasons
        known.append(BoundShape(shape, made.bindings))
    assert named(made.columns[:-1]) == {
        "a": "16:long",
        "a_": "17:double",
        "a__": "18:string",
        "b": "19[20:long]",
        "b_": "21[22:string]",
    }
    for shape, before in zip(shapes, known, strict=True):
        found = evolve_columns(made.columns, shape, made.next_id, known, adds_on_conflict=True)
        assert (found.columns, found.bindings, found.next_id) == (made.columns, before.bindings, made.next_id)


def test_map_key_may_be_narrower_than_its_column() -> None:
    first = evolve_columns(STREAM, struct(a=MapOf(LONG, INT)), 0)
    assert not evolve_columns(first.columns, struct(a=MapOf(INT, INT)), first.next_id).reasons


def test_column_is_renamed_when_the_field_has_its_name_as_alias() -> None:
    first = evolve_columns(STREAM, struct(old=INT), 0)
    shape = Struct((Field("new", LONG, aliases=("older", "old")),))
    second = evolve_columns(first.columns, shape, first.next_id)
    assert named(second.columns[:-1]) == {"new": "16:long"}
    assert evolve_columns(second.columns, shape, second.next_id) == second
    # Who still writes under the old name is known by what it was bound to.
    third = again(second.columns, struct(old=INT), [BoundShape(struct(old=INT), first.bindings)])
    assert third.columns == second.columns
    assert third.bindings == (ColumnBinding(16),)


def test_alias_does_not_match_the_column_of_another_field() -> None:
    first = evolve_columns(STREAM, struct(a=INT), 0)
    shape = Struct((Field("b", INT, aliases=("a",)), Field("a", INT)))
    second = evolve_columns(first.columns, shape, first.next_id)
    assert named(second.columns[:-1]) == {"a": "16:int", "b": "17:int"}


def test_field_is_matched_by_number_when_its_name_changed() -> None:
    one = Struct((Field("a", INT, number=1), Field("b", INT, number=2)))
    other = Struct((Field("c", INT, number=2), Field("a", INT, number=1)))
    first = evolve_columns(STREAM, one, 0)
    same = BoundShape(one, first.bindings, matches_by_number=True)
    second = evolve_columns(first.columns, other, first.next_id, [same])
    assert named(second.columns[:-1]) == {"a": "16:int", "c": "17:int"}
    assert second.bindings == (ColumnBinding(17), ColumnBinding(16))
    # In another message the numbers mean something else.
    third = evolve_columns(first.columns, other, first.next_id, [BoundShape(one, first.bindings)])
    assert named(third.columns[:-1]) == {"a": "16:int", "b": "17:int", "c": "18:int"}


def test_new_column_is_added_when_a_name_has_another_number() -> None:
    one, other = Struct((Field("a", INT, number=1),)), Struct((Field("a", STRING, number=2),))
    first = evolve_columns(STREAM, one, 0)
    second = evolve_columns(first.columns, other, first.next_id, [BoundShape(one, first.bindings, True)])
    assert named(second.columns[:-1]) == {"a": "16:int", "a_": "17:string"}
    assert not second.reasons


def test_field_keeps_its_column_when_an_engine_renamed_it() -> None:
    shape = struct(a=struct(b=INT))
    first = evolve_columns(STREAM, shape, 0)
    fields = iceberg_fields(first.columns)
    fields[0]["name"], fields[0]["type"]["fields"][0]["name"] = "x", "y"
    renamed = columns_of({"fields": fields})
    second = again(renamed, struct(a=struct(b=LONG)), [BoundShape(shape, first.bindings)])
    assert second.bindings == first.bindings
    assert named(second.columns[:-1]) == {"x": "16<y 17:long>"}


def test_column_gets_a_new_id_when_an_engine_dropped_it() -> None:
    first = evolve_columns(STREAM, struct(a=INT, b=INT), 0)
    second = again(first.columns[1:], struct(a=INT, b=INT), [BoundShape(struct(a=INT, b=INT), first.bindings)])
    assert second.bindings == (ColumnBinding(116), ColumnBinding(17))


def test_field_gets_an_underscore_when_its_name_is_reserved() -> None:
    shape = struct(_stream=INT, _key=STRING, value=INT, **{"a.b": INT, "": INT})
    first = evolve_columns(BINARY, shape, 0)
    assert [one.name for one in first.columns] == ["value", "_stream_", "_key_", "value_", "a_b", "_", "_stream"]
    assert evolve_columns(first.columns, shape, first.next_id) == first
    assert [one.name for one in evolve_columns(STREAM, struct(value=INT), 0).columns] == ["value", "_stream"]


def test_column_names_differ_in_more_than_case() -> None:
    shape = struct(foo=INT, Foo=STRING, Foo_=LONG, FOO=INT, in_=struct(x=INT, X=INT))
    first = evolve_columns(STREAM, shape, 0)
    assert [one.name for one in first.columns[:-1]] == ["foo", "Foo__", "Foo_", "FOO___", "in_"]
    folded = [one.name.casefold() for one in first.columns]
    assert len(set(folded)) == len(folded)
    assert evolve_columns(first.columns, shape, first.next_id) == first


def test_duplicate_names_get_underscores_and_then_numbers() -> None:
    alike = ["".join(chars) for chars in product("aA", "bB", "cC", "dD")]
    shape = struct(**dict.fromkeys(alike, INT))
    first = evolve_columns(STREAM, shape, 0)
    names = [one.name for one in first.columns[:-1]]
    assert names[:9] == [name + "_" * place for place, name in enumerate(alike[:9])]
    assert names[9:] == [f"{name}_{number}" for number, name in enumerate(alike[9:], 1)]
    assert evolve_columns(first.columns, shape, first.next_id) == first
    assert evolve_columns(first.columns, shape, first.next_id, [BoundShape(shape, first.bindings)]) == first


def test_number_at_the_end_of_a_name_is_no_suffix_for_other_names() -> None:
    columns = (Column(50, "a", STRING), Column(51, "A_1", INT))
    made = evolve_columns(columns, struct(a=STRING, A=INT), FIRST_FREE_ID + 100)
    assert [one.name for one in made.columns] == ["a", "A_1", "A_"]


@pytest.mark.parametrize("known", [False, True])
def test_thousands_of_names_with_one_prefix_are_matched_in_linear_time(known: bool) -> None:
    start = "x" * NAME_MAX
    shape = struct(**{f"{start}{number}": INT for number in range(3_000)})
    began_s = time.process_time()
    first = evolve_columns(STREAM, shape, 0)
    second = evolve_columns(first.columns, shape, first.next_id, [BoundShape(shape, first.bindings)] if known else [])
    assert time.process_time() - began_s < 3
    assert [one.name for one in first.columns[:3]] == [start, f"{start[:190]}_1", f"{start[:190]}_2"]
    assert max(len(one.name) for one in first.columns) == NAME_MAX
    assert second == first


def test_record_without_fields_has_no_column() -> None:
    made = evolve_columns(STREAM, struct(a=Struct(()), b=ListOf(struct(c=Struct(()))), d=INT), 0)
    assert made.bindings == (None, None, ColumnBinding(16))
    assert made.reasons[0] == "field a has no column: it is a record without fields"


def test_time_field_has_no_column_when_the_type_is_unsupported() -> None:
    of_day = Primitive(Kind.TIME)
    shape = struct(
        id=INT, at=of_day, by=struct(who=STRING, since=of_day), many=ListOf(of_day), only=struct(a=struct(b=of_day))
    )
    made = evolve_columns(STREAM, shape, 0, unsupported=NOT_IN_DELTA)
    assert named(made.columns[:-1]) == {"id": "16:int", "by": "17<who 18:string>"}
    assert made.bindings == (ColumnBinding(16), None, ColumnBinding(17, (ColumnBinding(18), None)), None, None)
    places = ("at", "by.since", "many.element", "only.a.b")
    why = "Delta does not support its type time (lakestream.table.formats)"
    assert made.reasons == tuple(f"field {place} has no column: {why}" for place in places)
    assert evolve_columns(made.columns, shape, made.next_id, unsupported=NOT_IN_DELTA).columns == made.columns
    key = evolve_key_columns(STREAM, struct(at=of_day), 0, unsupported=NOT_IN_DELTA)
    assert (key.columns, key.bindings) == (STREAM, (None,))
    later = evolve_columns(made.columns, shape, made.next_id, [BoundShape(shape, made.bindings)])
    assert (later.reasons, None in later.bindings) == ((), False), (
        "the field gets a column when the table is no longer a Delta table"
    )


def test_number_of_columns_and_depth_are_limited() -> None:
    many = Struct(tuple(Field(f"f{number}", INT) for number in range(6_000)))
    made = evolve_columns(STREAM, many, 0)
    assert len(list(filter(None, made.bindings))) == 5_000 - 14
    assert "maximum of" in made.reasons[0]
    deep: Struct = struct(a=INT)
    for _ in range(50):
        deep = struct(a=deep)
    assert evolve_columns(STREAM, deep, 0).bindings == (None,)


def test_key_fields_are_below_the_key_column() -> None:
    first = evolve_columns(STREAM, struct(a=INT), 0)
    keyed = evolve_key_columns(first.columns, struct(id=INT, _key=STRING), first.next_id)
    assert named(keyed.columns[:-1]) == {"a": "16:int", "_key": "17<id 18:int, _key 19:string>"}
    assert keyed.bindings == (ColumnBinding(18), ColumnBinding(19))
    wider = evolve_key_columns(keyed.columns, struct(id=LONG, z=INT), keyed.next_id)
    assert named(wider.columns[:-1]) == {"a": "16:int", "_key": "17<id 18:long, _key 19:string, z 20:int>"}
    more = evolve_columns(wider.columns, struct(a=INT, b=INT), wider.next_id)
    assert [one.name for one in more.columns] == ["a", "b", "_key", "_stream"]


def test_key_column_is_found_when_it_was_renamed_and_rejected_when_it_is_foreign() -> None:
    keyed = evolve_key_columns(STREAM, struct(id=INT), 0)
    fields = iceberg_fields(keyed.columns)
    fields[0]["name"] = "k"
    found = evolve_key_columns(
        columns_of({"fields": fields}), struct(id=INT), 30, [BoundShape(struct(id=INT), keyed.bindings)]
    )
    assert found.bindings == keyed.bindings
    assert found.next_id == 30
    fields[0].update(name="_key", type="int")
    taken = evolve_key_columns(columns_of({"fields": fields}), struct(id=INT), 30)
    assert taken.bindings == (None,)
    assert "rename it" in taken.reasons[0]
