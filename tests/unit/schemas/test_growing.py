"""A table's columns meet shapes: what is added, widened, renamed; what does not fit, and why."""

import pytest

from lakestream.catalog import topic_layout
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, columns_of, iceberg_fields, primitive_of
from lakestream.schemas.growing import NOT_IN_DELTA, Grown, Known, grown, grown_key
from lakestream.schemas.matching import FIRST_FREE_ID
from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct
from lakestream.schemas.writers import Bound

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


def again(columns: tuple[Column, ...], shape: Struct, before: list[Known] | None = None) -> Grown:
    return grown(columns, shape, FIRST_FREE_ID + 100, before or [])


def test_the_first_free_id_is_that_of_the_layout() -> None:
    assert FIRST_FREE_ID == topic_layout.FIRST_FREE_ID


def test_a_schema_is_read_and_written_as_it_is() -> None:
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
def test_other_spellings_of_a_decimal(text: str) -> None:
    assert primitive_of(text) == decimal(9, 2)
    assert primitive_of("decimal") is None


def test_fields_come_before_the_stream() -> None:
    made = grown(STREAM, struct(a=INT, b=struct(c=STRING), d=ListOf(LONG), e=MapOf(STRING, DOUBLE)), 0)
    assert [column.name for column in made.columns] == ["a", "b", "d", "e", "_stream"]
    assert named(made.columns[:-1]) == {
        "a": "16:int",
        "b": "17<c 18:string>",
        "d": "19[20:long]",
        "e": "21[22:string: 23:double]",
    }
    assert made.bounds == (
        Bound(16),
        Bound(17, (Bound(18),)),
        Bound(19, (Bound(20),)),
        Bound(21, (Bound(22), Bound(23))),
    )
    assert made.next_id == 24
    assert not made.reasons
    assert not any(column.required for column in made.columns[:-1])


def test_the_same_shape_changes_nothing() -> None:
    shape = struct(a=INT, b=struct(c=STRING), d=ListOf(struct(x=LONG)), e=MapOf(STRING, DOUBLE))
    first = grown(STREAM, shape, 0)
    second = grown(first.columns, shape, first.next_id)
    assert second == first


def test_new_fields_get_new_ids_and_old_columns_stay() -> None:
    first = grown(STREAM, struct(a=INT, b=STRING), 0)
    second = grown(first.columns, struct(c=STRING, a=INT), first.next_id)
    assert named(second.columns[:-1]) == {"a": "16:int", "b": "17:string", "c": "18:string"}
    assert second.bounds == (Bound(18), Bound(16))


def test_columns_are_widened_and_never_narrowed() -> None:
    narrow = struct(a=INT, b=FLOAT, c=decimal(9, 2), l=ListOf(INT), m=MapOf(STRING, INT))
    wide = struct(a=LONG, b=DOUBLE, c=decimal(20, 2), l=ListOf(LONG), m=MapOf(STRING, LONG))
    first = grown(STREAM, narrow, 0)
    second = grown(first.columns, wide, first.next_id)
    assert second.bounds == first.bounds
    assert not second.reasons
    assert named(second.columns[:-1]) == {
        "a": "16:long",
        "b": "17:double",
        "c": "18:decimal(20, 2)",
        "l": "19[20:long]",
        "m": "21[22:string: 23:long]",
    }
    third = grown(second.columns, narrow, second.next_id)
    assert third == second


@pytest.mark.parametrize(
    ("there", "comes", "said"),
    [
        (INT, STRING, "field a is string, and column a is int"),
        (LONG, DOUBLE, "field a is double, and column a is long"),
        (decimal(9, 2), decimal(9, 3), "field a is decimal(9, 3), and column a is decimal(9, 2)"),
        (INT, struct(b=INT), "field a is a struct, and column a is int"),
        (ListOf(INT), ListOf(STRING), "field a.element is string, and column element is int"),
        (MapOf(INT, INT), MapOf(LONG, INT), "field a.key is long, and column a.key is int"),
        (MapOf(STRING, INT), MapOf(STRING, STRING), "field a.value is string, and column value is int"),
    ],
)
def test_what_does_not_fit_has_no_column_and_a_reason(
    there: Primitive | Struct | ListOf | MapOf, comes: Primitive | Struct | ListOf | MapOf, said: str
) -> None:
    first = grown(STREAM, struct(a=there, b=INT), 0)
    second = grown(first.columns, struct(b=INT, a=comes), first.next_id)
    assert second.bounds == (first.bounds[1], None)
    assert second.columns == first.columns
    assert second.next_id == first.next_id
    assert second.reasons == (said,)


def test_a_misfit_inside_a_struct_leaves_its_siblings() -> None:
    first = grown(STREAM, struct(a=struct(x=INT, y=INT)), 0)
    second = grown(first.columns, struct(a=struct(y=INT, x=STRING, z=INT)), first.next_id)
    assert second.bounds == (Bound(16, (Bound(18), None, Bound(19))),)
    assert second.reasons == ("field a.x is string, and column x is int",)


def test_a_column_that_somebody_added_for_it() -> None:
    """With the name of the field and a `_` behind."""
    first = grown(STREAM, struct(a=INT), 0)
    known = [Known(struct(a=INT), first.bounds)]
    assert again(first.columns, struct(a=STRING), known).bounds == (None,)
    added = (*first.columns, Column(50, "a_", STRING), Column(51, "a__", DOUBLE))
    found = grown(added, struct(a=STRING), 52, known)
    assert found.bounds == (Bound(50),)
    assert not found.reasons
    known.append(Known(struct(a=STRING), found.bounds))
    for shape, bound in ((struct(a=STRING), 50), (struct(a=INT), 16), (struct(a=FLOAT), 51)):
        assert grown(added, shape, 52, known).bounds == (Bound(bound),)


def test_without_a_schema_each_type_has_a_column() -> None:
    shapes = [struct(a=LONG), struct(a=DOUBLE), struct(a=STRING, b=ListOf(LONG)), struct(b=ListOf(STRING))]
    made, known = Grown(STREAM, (), (), 0), list[Known]()
    for shape in shapes:
        made = grown(made.columns, shape, made.next_id, known, spreads=True)
        assert not made.reasons
        known.append(Known(shape, made.bounds))
    assert named(made.columns[:-1]) == {
        "a": "16:long",
        "a_": "17:double",
        "a__": "18:string",
        "b": "19[20:long]",
        "b_": "21[22:string]",
    }
    for shape, before in zip(shapes, known, strict=True):
        found = grown(made.columns, shape, made.next_id, known, spreads=True)
        assert (found.columns, found.bounds, found.next_id) == (made.columns, before.bounds, made.next_id)


def test_keys_of_maps_may_be_narrower_than_their_column() -> None:
    first = grown(STREAM, struct(a=MapOf(LONG, INT)), 0)
    assert not grown(first.columns, struct(a=MapOf(INT, INT)), first.next_id).reasons


def test_an_alias_renames_a_column() -> None:
    first = grown(STREAM, struct(old=INT), 0)
    shape = Struct((Field("new", LONG, aliases=("older", "old")),))
    second = grown(first.columns, shape, first.next_id)
    assert named(second.columns[:-1]) == {"new": "16:long"}
    assert grown(second.columns, shape, second.next_id) == second
    # Who still writes under the old name is known by what it was bound to.
    third = again(second.columns, struct(old=INT), [Known(struct(old=INT), first.bounds)])
    assert third.columns == second.columns
    assert third.bounds == (Bound(16),)


def test_an_alias_takes_no_column_that_another_field_has() -> None:
    first = grown(STREAM, struct(a=INT), 0)
    shape = Struct((Field("b", INT, aliases=("a",)), Field("a", INT)))
    second = grown(first.columns, shape, first.next_id)
    assert named(second.columns[:-1]) == {"a": "16:int", "b": "17:int"}


def test_a_number_is_the_same_field_under_another_name() -> None:
    one = Struct((Field("a", INT, number=1), Field("b", INT, number=2)))
    other = Struct((Field("c", INT, number=2), Field("a", INT, number=1)))
    first = grown(STREAM, one, 0)
    same = Known(one, first.bounds, numbers_count=True)
    second = grown(first.columns, other, first.next_id, [same])
    assert named(second.columns[:-1]) == {"a": "16:int", "c": "17:int"}
    assert second.bounds == (Bound(17), Bound(16))
    # In another message the numbers mean something else.
    third = grown(first.columns, other, first.next_id, [Known(one, first.bounds)])
    assert named(third.columns[:-1]) == {"a": "16:int", "b": "17:int", "c": "18:int"}


def test_a_name_that_another_number_has_now() -> None:
    one, other = Struct((Field("a", INT, number=1),)), Struct((Field("a", STRING, number=2),))
    first = grown(STREAM, one, 0)
    second = grown(first.columns, other, first.next_id, [Known(one, first.bounds, True)])
    assert named(second.columns[:-1]) == {"a": "16:int", "a_": "17:string"}
    assert not second.reasons


def test_a_column_that_others_have_renamed_is_still_the_one() -> None:
    shape = struct(a=struct(b=INT))
    first = grown(STREAM, shape, 0)
    fields = iceberg_fields(first.columns)
    fields[0]["name"], fields[0]["type"]["fields"][0]["name"] = "x", "y"
    renamed = columns_of({"fields": fields})
    second = again(renamed, struct(a=struct(b=LONG)), [Known(shape, first.bounds)])
    assert second.bounds == first.bounds
    assert named(second.columns[:-1]) == {"x": "16<y 17:long>"}


def test_a_column_that_others_have_dropped_comes_back_with_another_id() -> None:
    first = grown(STREAM, struct(a=INT, b=INT), 0)
    second = again(first.columns[1:], struct(a=INT, b=INT), [Known(struct(a=INT, b=INT), first.bounds)])
    assert second.bounds == (Bound(116), Bound(17))


def test_names_of_the_stream_are_evaded() -> None:
    shape = struct(_stream=INT, _key=STRING, value=INT, **{"a.b": INT, "": INT})
    first = grown(BINARY, shape, 0)
    assert [one.name for one in first.columns] == ["value", "_stream_", "_key_", "value_", "a_b", "_", "_stream"]
    assert grown(first.columns, shape, first.next_id) == first
    assert [one.name for one in grown(STREAM, struct(value=INT), 0).columns] == ["value", "_stream"]


def test_names_that_differ_in_case_alone() -> None:
    shape = struct(foo=INT, Foo=STRING, Foo_=LONG, FOO=INT, in_=struct(x=INT, X=INT))
    first = grown(STREAM, shape, 0)
    assert [one.name for one in first.columns[:-1]] == ["foo", "Foo__", "Foo_", "FOO___", "in_"]
    folded = [one.name.casefold() for one in first.columns]
    assert len(set(folded)) == len(folded)
    assert grown(first.columns, shape, first.next_id) == first


def test_records_without_fields_have_no_columns() -> None:
    made = grown(STREAM, struct(a=Struct(()), b=ListOf(struct(c=Struct(()))), d=INT), 0)
    assert made.bounds == (None, None, Bound(16))
    assert made.reasons[0] == "field a has no column: it is a record without fields"


def test_what_delta_cannot_say_has_no_column_where_the_table_is_one_too() -> None:
    time = Primitive(Kind.TIME)
    shape = struct(id=INT, at=time, by=struct(who=STRING, since=time), many=ListOf(time), only=struct(a=struct(b=time)))
    made = grown(STREAM, shape, 0, unsaid=NOT_IN_DELTA)
    assert named(made.columns[:-1]) == {"id": "16:int", "by": "17<who 18:string>"}
    assert made.bounds == (Bound(16), None, Bound(17, (Bound(18), None)), None, None)
    places = ("at", "by.since", "many.element", "only.a.b")
    why = "it is of type time, which Delta does not have (lakestream.table.formats)"
    assert made.reasons == tuple(f"field {place} has no column: {why}" for place in places)
    assert grown(made.columns, shape, made.next_id, unsaid=NOT_IN_DELTA).columns == made.columns
    key = grown_key(STREAM, struct(at=time), 0, unsaid=NOT_IN_DELTA)
    assert (key.columns, key.bounds) == (STREAM, (None,))
    later = grown(made.columns, shape, made.next_id, [Known(shape, made.bounds)])
    assert (later.reasons, None in later.bounds) == ((), False), "once it is no Delta table any more"


def test_there_is_an_end_to_columns_and_to_depth() -> None:
    many = Struct(tuple(Field(f"f{number}", INT) for number in range(6_000)))
    made = grown(STREAM, many, 0)
    assert len(list(filter(None, made.bounds))) == 5_000 - 14
    assert "gets no more" in made.reasons[0]
    deep: Struct = struct(a=INT)
    for _ in range(50):
        deep = struct(a=deep)
    assert grown(STREAM, deep, 0).bounds == (None,)


def test_keys_are_below_one_column() -> None:
    first = grown(STREAM, struct(a=INT), 0)
    keyed = grown_key(first.columns, struct(id=INT, _key=STRING), first.next_id)
    assert named(keyed.columns[:-1]) == {"a": "16:int", "_key": "17<id 18:int, _key 19:string>"}
    assert keyed.bounds == (Bound(18), Bound(19))
    wider = grown_key(keyed.columns, struct(id=LONG, z=INT), keyed.next_id)
    assert named(wider.columns[:-1]) == {"a": "16:int", "_key": "17<id 18:long, _key 19:string, z 20:int>"}
    more = grown(wider.columns, struct(a=INT, b=INT), wider.next_id)
    assert [one.name for one in more.columns] == ["a", "b", "_key", "_stream"]


def test_a_key_that_others_have_renamed_or_had_before() -> None:
    keyed = grown_key(STREAM, struct(id=INT), 0)
    fields = iceberg_fields(keyed.columns)
    fields[0]["name"] = "k"
    found = grown_key(columns_of({"fields": fields}), struct(id=INT), 30, [Known(struct(id=INT), keyed.bounds)])
    assert found.bounds == keyed.bounds
    assert found.next_id == 30
    fields[0].update(name="_key", type="int")
    taken = grown_key(columns_of({"fields": fields}), struct(id=INT), 30)
    assert taken.bounds == (None,)
    assert "rename it" in taken.reasons[0]
