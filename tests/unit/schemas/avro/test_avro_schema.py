"""Avro schemas: what is read, what is refused and why, which columns they become, and what reads what."""

import json
from typing import Any

import pytest

from lakestream.errors import Rejected
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct


def schema(raw: Any, *references: Reference) -> AvroSchema:
    return read_avro(Source(Format.AVRO, raw if isinstance(raw, str) else json.dumps(raw), references))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


def column(raw: Any) -> Any:
    (field,) = schema(record(("a", raw))).shape().fields
    return field.type


# Refused


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no JSON"),
        ("17", "is no type"),
        ('{"type": 3}', 'has a "type" that is no text'),
        ('"Unknown"', "it is a Unknown: no such type"),
        (record(("a", "b.Unknown")), "field a is a b.Unknown: no such type"),
        (record(("a", {"type": "array", "items": {"type": "map", "values": "Nope"}})), "field a[]{} is a Nope"),
        ({"type": "record", "name": "R"}, 'field R is a record without "fields"'),
        ({"type": "record", "fields": []}, "is a record whose name is null"),
        (record(name="1R"), 'whose name is "1R"'),
        (record(name="a.b-c"), "whose name is"),
        (record(("a-b", "int")), "field a-b is called 'a-b'"),
        (record(("a", "int"), ("a", "int")), "field a stands twice in record R"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, 'field a has no "type"'),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "has a field without a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": "b"}]}, '"aliases"'),
        (record(("a", record(("b", record(("c", {"type": "array"}), name="T")), name="S"))), "field a.b.c is an array"),
        (record(("a", {"type": "map"})), 'field a is a map without "values"'),
        (record(("a", {"type": "fixed", "name": "F"})), 'field a is a fixed without "size"'),
        (record(("a", {"type": "fixed", "name": "F", "size": -1})), 'field a is a fixed without "size"'),
        (record(("a", {"type": "enum", "name": "E"})), 'field a is an enum without "symbols"'),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x", "x"]})), "field a has a symbol twice"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x-y"]})), "'x-y'"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x"], "default": "y"})), "none of its symbols"),
        (record(("a", record(name="R"))), "redefined named type: R"),
        (record(("a", record(name="S")), ("b", record(name="S"))), "S"),
        ([record(name="S"), record(name="S")], "S"),
        (record(("a", ["int", "int"])), "field a is a union that has int twice"),
        (record(("a", ["int", ["null", "string"]])), "field a is a union that holds another"),
        (record(("a", [])), "field a is a union of nothing"),
        (record(("a", {"type": "array", "items": ["null", "null"]})), "field a[] is a union that has null twice"),
    ],
)
def test_a_mistake_is_said_with_the_field(text: Any, says: str) -> None:
    with pytest.raises(Rejected) as caught:
        schema(text)
    assert says in str(caught.value)


def test_nesting_and_size_have_bounds() -> None:
    raw: Any = "int"
    for _ in range(80):
        raw = {"type": "array", "items": raw}
    with pytest.raises(Rejected, match="deeper than 64"):
        schema(raw)
    with pytest.raises(Rejected, match="deeper than 64"):
        schema("[" * 100_000 + "]" * 100_000)
    with pytest.raises(Rejected, match="deeper than 64"):
        schema('{"type":"int","x":' + "[" * 500 + "]" * 500 + "}")
    with pytest.raises(Rejected, match="characters"):
        schema('"' + "x" * 2**20 + '"')


@pytest.mark.parametrize(
    ("type_", "default", "fits"),
    [
        ("int", 1, True),
        ("int", 2**31, False),
        ("int", True, False),
        ("int", 1.5, False),
        ("long", 2**31, True),
        ("double", 1, True),
        ({"type": "double"}, 1, True),
        ("double", "NaN", True),
        ("double", "x", False),
        ("string", "x", True),
        ("string", None, False),
        ("bytes", "\u00ff", True),
        ("bytes", "\u0100", False),
        (["null", "int"], None, True),
        (["null", "int"], 1, True),
        (["null", "int"], "1", False),
        ({"type": "array", "items": "int"}, [], True),
        ({"type": "array", "items": "int"}, ["x"], False),
        ({"type": "map", "values": "int"}, {"a": 1}, True),
        ({"type": "fixed", "name": "F", "size": 2}, "xx", True),
        ({"type": "fixed", "name": "F", "size": 2}, "xxx", False),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "x", True),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "y", False),
        (record(("b", "int"), name="S"), {"b": 1}, True),
        (record(("b", "int"), name="S"), {}, False),
    ],
)
def test_defaults_are_values_of_their_type(type_: Any, default: Any, fits: bool) -> None:
    raw = {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_, "default": default}]}
    if fits:
        schema(raw)
    else:
        with pytest.raises(Rejected, match="field a has a default that is no"):
            schema(raw)


# References


def test_references_define_names() -> None:
    money = Reference("money", json.dumps(record(("amount", "long"), name="a.Money")))
    line = Reference("line", json.dumps(record(("price", "a.Money"), name="a.Line")), (money,))
    order = schema(record(("total", "a.Money"), ("lines", {"type": "array", "items": "a.Line"})), line, money)
    total, lines = order.shape().fields
    assert total.type == Struct((Field("amount", Primitive(Kind.LONG)),))
    assert lines.type == ListOf(Struct((Field("price", total.type),)))
    assert order.canonical == (
        '{"name":"R","type":"record","fields":[{"name":"total","type":"a.Money"},'
        '{"name":"lines","type":{"type":"array","items":"a.Line"}}]}'
    )


def test_what_is_wrong_with_a_reference_is_said() -> None:
    with pytest.raises(Rejected, match="reference x: the schema is no JSON"):
        schema('"int"', Reference("x", "{"))
    with pytest.raises(Rejected, match="two references are called x"):
        schema('"int"', Reference("x", '"int"'), Reference("x", '"long"'))
    with pytest.raises(Rejected, match="S, which is defined already"):
        schema(record(name="S"), Reference("x", json.dumps(record(name="S"))))
    wide: tuple[Reference, ...] = ()
    for _ in range(12):
        wide = (Reference("x", '"int"', wide), Reference("x", '"int"', wide))
    with pytest.raises(Rejected, match="more than 1000 references"):
        schema('"int"', *wide)


# The one text


def test_texts_that_mean_the_same_have_one_canonical_text() -> None:
    one = """{ "namespace": "n", "doc": "d", "type": "record", "name": "R", "fields": [
        {"type": {"scale": 0, "precision": 4, "type": "bytes", "logicalType": "decimal"}, "name": "a",
         "order": "ascending"},
        {"name": "b", "type": ["null", {"type": "R"}], "default": null},
        {"name": "c", "type": {"type": "string", "x": 1, "avro.java.string": "String"}, "aliases": ["z", "y"]}]}"""
    same = {
        "type": "record",
        "name": "n.R",
        "fields": [
            {"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4}},
            {"name": "b", "type": ["null", "n.R"], "default": None},
            {"name": "c", "type": {"avro.java.string": "String", "x": 1, "type": "string"}, "aliases": ["y", "z"]},
        ],
        "doc": "d",
    }
    assert schema(one).canonical == schema(same).canonical
    assert schema(schema(one).canonical).canonical == schema(one).canonical
    other = {**same, "doc": "e"}
    assert schema(other).canonical != schema(one).canonical


def test_names_in_all_spellings() -> None:
    assert schema("string").canonical == schema('"string"').canonical == schema('{"type": "string"}').canonical
    assert schema({"type": {"type": "string"}}).canonical == '"string"'
    assert schema({"type": "error", "name": "E", "fields": []}).canonical == '{"name":"E","type":"record","fields":[]}'


# Columns


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "long"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "int", "logicalType": "time-millis"}, "time"),
        ({"type": "long", "logicalType": "time-micros"}, "time"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "timestamptz"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamptz"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "timestamptz"),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, "timestamp"),
        ({"type": "long", "logicalType": "local-timestamp-nanos"}, "timestamp"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "size": 16, "name": "F", "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "size": 16, "name": "F"}, "fixed[16]"),
        ({"type": "fixed", "size": 12, "name": "F", "logicalType": "duration"}, "fixed[12]"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38}, "decimal(38, 38)"),
        ({"type": "fixed", "size": 4, "name": "F", "logicalType": "decimal", "precision": 9}, "decimal(9, 0)"),
        ({"type": "bytes", "logicalType": "big-decimal"}, "binary"),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "string"),
        (["null", "int"], "int"),
        (["int", "null"], "int"),
        (["int"], "int"),
        # Logical types that make no sense, or are not known, are none.
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "binary"),
        ({"type": "bytes", "logicalType": "decimal"}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "binary"),
        ({"type": "fixed", "size": 4, "name": "F", "logicalType": "decimal", "precision": 10}, "fixed[4]"),
        ({"type": "int", "logicalType": "timestamp-millis"}, "int"),
        ({"type": "string", "logicalType": "mine"}, "string"),
        ({"type": "fixed", "size": 15, "name": "F", "logicalType": "uuid"}, "fixed[15]"),
    ],
)
def test_types_become_columns(raw: Any, kind: str) -> None:
    assert str(column(raw)) == kind


def test_what_is_made_of_others() -> None:
    string, number = Primitive(Kind.STRING), Primitive(Kind.INT)
    assert column({"type": "array", "items": ["null", "int"]}) == ListOf(number)
    assert column({"type": "map", "values": "int"}) == MapOf(string, number)
    assert column(["null", record(("x", "int"), name="S")]) == Struct((Field("x", number),))
    assert column(["null", "int", "string"]) == Struct((Field("int", number), Field("string", string)))
    assert schema('"int"').shape() == Struct((Field("value", number),))
    assert schema([record(("x", "int"), name="n.A"), record(("y", "int"), name="n.B")]).shape() == Struct(
        (
            Field(
                "value", Struct((Field("A", Struct((Field("x", number),))), Field("B", Struct((Field("y", number),)))))
            ),
        )
    )


def test_fields_keep_aliases_and_doc() -> None:
    raw = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": ["b"], "doc": "why"}]}
    assert schema(raw).shape() == Struct((Field("a", Primitive(Kind.INT), ("b",), doc="why"),))


def test_branches_have_names_of_their_own() -> None:
    both = column(
        ["int", record(("x", "int"), name="n.Int"), record(("x", "int"), name="m.S"), record(("x", "int"), name="o.S")]
    )
    assert [field.name for field in both.fields] == ["int", "n_Int", "m_S", "o_S"]


def test_what_columns_cannot_say_is_left_out() -> None:
    tree = record(("value", "int"), ("next", ["null", "R"]), ("all", {"type": "array", "items": "R"}), ("n", "null"))
    assert schema(tree).shape() == Struct((Field("value", Primitive(Kind.INT)),))
    assert schema(record(("a", record(name="Empty")))).shape() == Struct(())
    assert schema('"null"').shape() == Struct(())
    assert schema(record(("a", {"type": "fixed", "name": "F", "size": 0}))).shape() == Struct(())
    assert schema(record(("a", {"type": "array", "items": "null"}))).shape() == Struct(())


def test_a_small_text_of_very_many_columns_is_cut_short() -> None:
    raw: Any = record(("x", "int"), name="R0")
    for level in range(1, 25):
        raw = record(("a", raw), ("b", f"R{level - 1}"), name=f"R{level}")
    assert len(str(schema(raw).shape())) < 1_000_000


# What reads what


def evolved(before: Any, after: Any) -> list[str]:
    """Can the newer read the older?"""
    return schema(after).troubles_reading(schema(before))


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")} | {
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


@pytest.mark.parametrize("before", PRIMITIVES)
@pytest.mark.parametrize("after", PRIMITIVES)
def test_numbers_may_grow(before: str, after: str) -> None:
    assert bool(evolved(before, after)) == (before != after and (before, after) not in PROMOTED)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (record(("a", "int")), record(("a", "int")), None),
        (record(("a", "int")), record(), None),
        (record(), record(("a", "int")), "field a has no default"),
        (record(("a", "int")), record(("a", ["null", "int"])), None),
        (record(("a", ["null", "int"])), record(("a", "int")), "field a was written as null"),
        (record(("a", ["null", "int"])), record(("a", ["null", "string"])), "field a may be int"),
        (record(("a", ["int", "string"])), record(("a", ["string", "long", "null"])), None),
        (record(("a", "int")), record(("a", "string")), "field a was written as int, which cannot be read as string"),
        (record(name="n.R"), record(name="m.R"), None),
        (record(name="R"), record(name="S"), "called S now"),
        (record(name="n.R"), record(name="n.S", aliases=["R"]), None),
        (record(name="n.R"), record(name="m.S", aliases=["R"]), "called m.S now"),
        (
            record(("a", record(("b", {"type": "array", "items": "int"}), name="S"))),
            record(("a", record(("b", {"type": "array", "items": "string"}), name="S"))),
            "field a.b[] was written as int",
        ),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "field {} was written as int"),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "the value was written as map"),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            "written as 2 bytes, and has 3 now",
        ),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "G", "size": 2}, "called G now"),
        (
            {"type": "enum", "name": "E", "symbols": ["x", "y"]},
            {"type": "enum", "name": "E", "symbols": ["x"]},
            "may be y, which enum E does not have",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["x", "y"]},
            {"type": "enum", "name": "E", "symbols": ["x"], "default": "x"},
            None,
        ),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, {"type": "enum", "name": "E", "symbols": ["y", "x"]}, None),
        ({"type": "enum", "name": "E", "symbols": ["x"]}, "string", "written as enum E"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
            "2 decimal places",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            None,
        ),
        (
            [record(("a", "int"), name="S"), record(name="T")],
            [record(("a", "int"), ("b", "int"), name="S"), record(name="T")],
            "field b has no default",
        ),
        (record(("next", ["null", "R"]), ("a", "int")), record(("next", ["null", "R"]), ("a", "long")), None),
        (record(("next", ["null", "R"]), ("a", "long")), record(("next", ["null", "R"]), ("a", "int")), "field a was"),
    ],
)
def test_what_can_be_read(before: Any, after: Any, says: str | None) -> None:
    found = evolved(before, after)
    assert (found == []) if says is None else any(says in trouble for trouble in found), found


def test_fields_by_default_and_by_alias() -> None:
    before = record(("old", "int"))
    fields = [{"name": "new", "type": "int", "aliases": ["old"]}, {"name": "more", "type": "string", "default": ""}]
    after = {"type": "record", "name": "R", "fields": fields}
    assert evolved(before, after) == []
    assert evolved(after, before) == ["field old has no default, and was not written before"]


def test_another_format_cannot_be_read() -> None:
    class Other:
        source = Source(Format.JSON, "{}")

    assert schema('"int"').troubles_reading(Other()) == ["it was written as JSON, which is not Avro"]  # type: ignore[arg-type]


def test_large_schemas_are_compared_at_once() -> None:
    """All of these took minutes when every branch, field and symbol was held against every other."""
    union = [record(("x", "int"), name=f"n.R{number}", aliases=[f"Old{number}"]) for number in range(2_000)]
    renamed = [record(("x", "int"), name=f"n.Old{number}") for number in range(2_000)]
    wide = record(*((f"f{number}", "int") for number in range(5_000)))
    enum = {"type": "enum", "name": "E", "symbols": [f"S{number}" for number in range(20_000)]}
    assert evolved(union, union) == []
    assert evolved(renamed, union) == []
    assert len(evolved(union, renamed)) == 100
    assert evolved(wide, wide) == []
    assert evolved(enum, enum) == []
    assert len(schema(union).shape().fields) == 1
