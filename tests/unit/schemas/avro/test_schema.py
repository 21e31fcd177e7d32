"""Avro schemas: parsing, references, canonical text, column types and compatibility."""

import json
from typing import Any

import pytest

from lakestream.errors import Rejected
from lakestream.schemas.avro.schema import AvroSchema, read_avro
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct


def schema(raw: Any, *references: Reference) -> AvroSchema:
    return read_avro(Source(Format.AVRO, raw if isinstance(raw, str) else json.dumps(raw), references))


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


def column(raw: Any) -> Any:
    (field,) = schema(record(("a", raw))).shape().fields
    return field.type


# Invalid schemas


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("17", "is not a type"),
        ('{"type": 3}', 'has a "type" that is not a string'),
        ('"Unknown"', "the schema has the type Unknown: the type is not defined"),
        (record(("a", "b.Unknown")), "field a has the type b.Unknown: the type is not defined"),
        (record(("a", {"type": "array", "items": {"type": "map", "values": "Nope"}})), "field a[]{} has the type Nope"),
        ({"type": "record", "name": "R"}, 'field R is a record without a list of "fields"'),
        ({"type": "record", "fields": []}, "is a record with the invalid name null"),
        (record(name="1R"), 'with the invalid name "1R"'),
        (record(name="a.b-c"), "with the invalid name"),
        (record(("a-b", "int")), "field a-b has the invalid name 'a-b'"),
        (record(("a", "int"), ("a", "int")), "field a appears twice in record R"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, 'field a has no "type"'),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "has a field without a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": "b"}]}, '"aliases"'),
        (record(("a", record(("b", record(("c", {"type": "array"}), name="T")), name="S"))), "field a.b.c is an array"),
        (record(("a", {"type": "map"})), 'field a is a map without "values"'),
        (record(("a", {"type": "fixed", "name": "F"})), 'field a is a fixed without "size"'),
        (record(("a", {"type": "fixed", "name": "F", "size": -1})), 'field a is a fixed without "size"'),
        (record(("a", {"type": "enum", "name": "E"})), 'field a is an enum without a list of "symbols"'),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x", "x"]})), "field a has a symbol twice"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x-y"]})), "'x-y'"),
        (record(("a", {"type": "enum", "name": "E", "symbols": ["x"], "default": "y"})), "not one of its symbols"),
        (record(("a", record(name="R"))), "redefined named type: R"),
        (record(("a", record(name="S")), ("b", record(name="S"))), "S"),
        ([record(name="S"), record(name="S")], "S"),
        (record(("a", ["int", "int"])), "field a is a union that has int twice"),
        (record(("a", ["int", ["null", "string"]])), "field a is a union that directly contains another"),
        (record(("a", [])), "field a is a union without branches"),
        (record(("a", {"type": "array", "items": ["null", "null"]})), "field a[] is a union that has null twice"),
    ],
)
def test_invalid_schema_is_rejected_with_its_field(text: Any, message: str) -> None:
    with pytest.raises(Rejected) as caught:
        schema(text)
    assert message in str(caught.value)


def test_schema_is_rejected_when_it_is_too_large_or_nested_too_deeply() -> None:
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
def test_default_is_rejected_when_it_is_not_a_value_of_its_type(type_: Any, default: Any, fits: bool) -> None:
    raw = {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_, "default": default}]}
    if fits:
        schema(raw)
    else:
        with pytest.raises(Rejected, match="field a has a default that is not a valid"):
            schema(raw)


# References


def test_references_define_names_for_the_schema() -> None:
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


def test_invalid_references_are_rejected() -> None:
    with pytest.raises(Rejected, match="reference x: the schema is not valid JSON"):
        schema('"int"', Reference("x", "{"))
    with pytest.raises(Rejected, match="two references have the name x"):
        schema('"int"', Reference("x", '"int"'), Reference("x", '"long"'))
    with pytest.raises(Rejected, match="S, which is already defined"):
        schema(record(name="S"), Reference("x", json.dumps(record(name="S"))))
    wide: tuple[Reference, ...] = ()
    for _ in range(12):
        wide = (Reference("x", '"int"', wide), Reference("x", '"int"', wide))
    with pytest.raises(Rejected, match="more than 1000 references"):
        schema('"int"', *wide)


# Canonical text


def test_equivalent_schemas_have_the_same_canonical_text() -> None:
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


def test_canonical_text_is_the_same_for_all_notations_of_a_type() -> None:
    assert schema("string").canonical == schema('"string"').canonical == schema('{"type": "string"}').canonical
    assert schema({"type": {"type": "string"}}).canonical == '"string"'
    assert schema({"type": "error", "name": "E", "fields": []}).canonical == '{"name":"E","type":"record","fields":[]}'


# Column types


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
        # Invalid and unknown logical types are ignored.
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "binary"),
        ({"type": "bytes", "logicalType": "decimal"}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "binary"),
        ({"type": "fixed", "size": 4, "name": "F", "logicalType": "decimal", "precision": 10}, "fixed[4]"),
        ({"type": "int", "logicalType": "timestamp-millis"}, "int"),
        ({"type": "string", "logicalType": "mine"}, "string"),
        ({"type": "fixed", "size": 15, "name": "F", "logicalType": "uuid"}, "fixed[15]"),
    ],
)
def test_type_is_converted_to_its_column_type(raw: Any, kind: str) -> None:
    assert str(column(raw)) == kind


def test_complex_types_are_converted_to_column_types() -> None:
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


def test_shape_has_aliases_and_docs_of_the_fields() -> None:
    raw = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": ["b"], "doc": "why"}]}
    assert schema(raw).shape() == Struct((Field("a", Primitive(Kind.INT), ("b",), doc="why"),))


def test_branches_of_a_union_have_unique_names() -> None:
    both = column(
        ["int", record(("x", "int"), name="n.Int"), record(("x", "int"), name="m.S"), record(("x", "int"), name="o.S")]
    )
    assert [field.name for field in both.fields] == ["int", "n_Int", "m_S", "o_S"]


def test_recursive_and_empty_types_are_omitted_from_the_shape() -> None:
    tree = record(("value", "int"), ("next", ["null", "R"]), ("all", {"type": "array", "items": "R"}), ("n", "null"))
    assert schema(tree).shape() == Struct((Field("value", Primitive(Kind.INT)),))
    assert schema(record(("a", record(name="Empty")))).shape() == Struct(())
    assert schema('"null"').shape() == Struct(())
    assert schema(record(("a", {"type": "fixed", "name": "F", "size": 0}))).shape() == Struct(())
    assert schema(record(("a", {"type": "array", "items": "null"}))).shape() == Struct(())


def test_number_of_columns_is_limited_when_records_are_used_often() -> None:
    raw: Any = record(("x", "int"), name="R0")
    for level in range(1, 25):
        raw = record(("a", raw), ("b", f"R{level - 1}"), name=f"R{level}")
    assert len(str(schema(raw).shape())) < 1_000_000


# Compatibility


def evolved(before: Any, after: Any) -> list[str]:
    """Returns the reasons why the schema `after` cannot read values of `before`."""
    return schema(after).incompatibilities_reading(schema(before))


PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
PROMOTED = {("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")} | {
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


@pytest.mark.parametrize("before", PRIMITIVES)
@pytest.mark.parametrize("after", PRIMITIVES)
def test_primitive_types_are_compatible_only_by_promotion(before: str, after: str) -> None:
    assert bool(evolved(before, after)) == (before != after and (before, after) not in PROMOTED)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (record(("a", "int")), record(("a", "int")), None),
        (record(("a", "int")), record(), None),
        (record(), record(("a", "int")), "field a is new and has no default"),
        (record(("a", "int")), record(("a", ["null", "int"])), None),
        (record(("a", ["null", "int"])), record(("a", "int")), "field a was written as null"),
        (record(("a", ["null", "int"])), record(("a", ["null", "string"])), "field a may be int"),
        (record(("a", ["int", "string"])), record(("a", ["string", "long", "null"])), None),
        (record(("a", "int")), record(("a", "string")), "field a was written as int, which cannot be read as string"),
        (record(name="n.R"), record(name="m.R"), None),
        (record(name="R"), record(name="S"), "renamed to S without"),
        (record(name="n.R"), record(name="n.S", aliases=["R"]), None),
        (record(name="n.R"), record(name="m.S", aliases=["R"]), "renamed to m.S without"),
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
            "written with 2 bytes, and now has 3",
        ),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "G", "size": 2}, "renamed to G without"),
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
            "field b is new and has no default",
        ),
        (record(("next", ["null", "R"]), ("a", "int")), record(("next", ["null", "R"]), ("a", "long")), None),
        (record(("next", ["null", "R"]), ("a", "long")), record(("next", ["null", "R"]), ("a", "int")), "field a was"),
    ],
)
def test_incompatibilities_follow_schema_resolution(before: Any, after: Any, message: str | None) -> None:
    found = evolved(before, after)
    assert (found == []) if message is None else any(message in message for message in found), found


def test_new_field_is_compatible_when_it_has_a_default_or_an_alias() -> None:
    before = record(("old", "int"))
    fields = [{"name": "new", "type": "int", "aliases": ["old"]}, {"name": "more", "type": "string", "default": ""}]
    after = {"type": "record", "name": "R", "fields": fields}
    assert evolved(before, after) == []
    assert evolved(after, before) == ["field old is new and has no default"]


def test_schema_of_another_format_is_incompatible() -> None:
    class Other:
        source = Source(Format.JSON, "{}")

    assert schema('"int"').incompatibilities_reading(Other()) == ["the older schema is of type JSON, this one is AVRO"]  # type: ignore[arg-type]


def test_large_schemas_are_compared_in_linear_time() -> None:
    """All of these took minutes when every pair of branches, fields and symbols was compared."""
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


def doubling(leaf: str, depth: int) -> Any:
    """Records R0…Rn: each has two fields of the next one."""
    inner: Any = leaf
    for number in reversed(range(depth)):
        again = leaf if number == depth - 1 else f"R{number + 1}"
        inner = record(("a", inner), ("b", again), name=f"R{number}")
    return inner


def test_comparison_takes_little_memory_when_each_record_uses_the_next_one_twice() -> None:
    """Each use of a record repeats its incompatibilities: without a limit there would be 2^60 at the top."""
    found = evolved(doubling("int", 60), doubling("string", 60))
    assert len(found) == 100
    assert found[0].endswith("was written as int, which cannot be read as string")
    assert all(len(one) < 500 for one in found)
    assert evolved(doubling("int", 60), doubling("long", 60)) == []
    everything = [("x", {"type": "array", "items": doubling("int", 60)})]
    assert len(evolved(record(*everything), record(("x", {"type": "array", "items": doubling("string", 60)})))) == 100


def test_assumed_compatibility_of_recursive_records_is_checked_again() -> None:
    """n.A cannot read A, whichever of its fields is compared first, so B, which contains it, cannot either."""
    inner = record(("a", "n.A"), name="n.B")
    first = record(("b", inner), ("x", "string"), name="n.A")
    second = record(("x", "int"), name="m.A")
    reader = record(("u", [first, second]), ("v", "n.B"), name="T")
    writer_a = record(("b", record(("a", "n.A"), name="n.B")), ("x", "int"), name="n.A")
    writer = record(("u", writer_a), ("v", "n.B"), name="T")
    assert evolved(writer, reader) == ["field u.x was written as int, which cannot be read as string"]


def test_comparison_is_rejected_when_records_are_nested_too_deeply() -> None:
    chain = [record(("x", "int"), name="C0")]
    chain += [record(("x", f"C{number}"), name=f"C{number + 1}") for number in range(2_000)]
    references = Reference("chain", json.dumps(record(*((one["name"], one) for one in chain), name="All")))
    long = schema(record(("x", "C2000"), name="T"), references)
    with pytest.raises(Rejected, match="nested too deeply to be compared"):
        long.incompatibilities_reading(schema(record(("x", "C2000"), name="T"), references))
    short = schema(record(("x", "C100"), name="T"), references)
    assert short.incompatibilities_reading(schema(record(("x", "C100"), name="T"), references)) == []


def test_default_is_checked_in_linear_time_when_many_branches_may_fit() -> None:
    """There are 2^60 ways to interpret the default, none of which fits."""
    value: Any = 1
    for _ in range(60):
        value = {"x": value}
    other = record(("x", ["null", "R", "S"]), name="S")
    field = {"name": "r", "type": [record(("x", ["null", "R", other]), name="R")], "default": value}
    with pytest.raises(Rejected, match="has a default that is not a valid union"):
        schema({"type": "record", "name": "T", "fields": [field]})
