"""Fields that come to a oneof, leave it, or change from one to another; and messages that come from elsewhere."""

import pytest

from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.protobuf.schema import read_protobuf

HEAD = 'syntax = "proto3";\n'


def troubles(newer: str, older: str) -> list[str]:
    schemas = [read_protobuf(Source(Format.PROTOBUF, f"{HEAD}message M {{ {one} }}")) for one in (newer, older)]
    return schemas[0].troubles_reading(schemas[1])


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        ("oneof y { int32 a = 1; int32 b = 2; }", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("oneof x { int32 a = 1; } int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("oneof x { int32 a = 1; } oneof y { int32 b = 2; }", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("int32 c = 3;", "oneof x { int32 a = 1; int32 b = 2; } int32 c = 3;"),
        ("oneof y { int32 b = 2; int32 c = 3; }", "oneof x { int32 a = 1; } int32 b = 2;"),
    ],
)
def test_at_most_one_of_them_was_ever_set(newer: str, older: str) -> None:
    assert troubles(newer, older) == []


@pytest.mark.parametrize(
    ("newer", "older", "why"),
    [
        (
            "oneof y { int32 a = 1; int32 b = 2; int32 c = 3; }",
            "oneof x { int32 a = 1; int32 b = 2; } int32 c = 3;",
            "the fields a, b, c of M were moved into one oneof, y",
        ),
        (
            "oneof y { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } oneof y { int32 b = 2; }",
            "M.a (number 1) was moved into the oneof y",
        ),
        (
            "oneof z { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } oneof y { int32 b = 2; }",
            "the fields a, b of M were moved into one oneof, z",
        ),
        (
            "oneof y { int32 a = 1; }",
            "oneof x { int32 a = 1; int32 b = 2; }",
            "M.b (number 2) was removed from the oneof x",
        ),
    ],
)
def test_two_that_could_be_set_or_one_that_is_missed(newer: str, older: str, why: str) -> None:
    (said,) = troubles(newer, older)
    assert why in said


def test_a_message_may_come_from_elsewhere_but_not_be_another() -> None:
    def outer(package: str, fields: str) -> Source:
        inner = Reference("inner.proto", f"{HEAD}package {package}; message Inner {{ {fields} }}")
        text = f'{HEAD}import "inner.proto"; message M {{ .{package}.Inner inner = 1; }}'
        return Source(Format.PROTOBUF, text, (inner,))

    here = Source(Format.PROTOBUF, f"{HEAD}message M {{ Inner inner = 1; }} message Inner {{ int32 a = 1; }}")
    for newer in (outer("one", "int32 a = 1;"), outer("two", "int32 a = 1;"), here):
        assert read_protobuf(newer).troubles_reading(read_protobuf(outer("one", "int32 a = 1;"))) == []
    other = read_protobuf(outer("two", "string a = 1;"))
    (said,) = other.troubles_reading(read_protobuf(outer("one", "int32 a = 1;")))
    assert "two.Inner.a" in said
