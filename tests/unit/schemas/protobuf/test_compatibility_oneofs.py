"""Compatibility when fields are moved into, out of and between oneofs, and messages between files."""

import pytest

from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.protobuf.schema import read_protobuf

HEAD = 'syntax = "proto3";\n'


def incompatibilities(newer: str, older: str) -> list[str]:
    schemas = [read_protobuf(Source(Format.PROTOBUF, f"{HEAD}message M {{ {one} }}")) for one in (newer, older)]
    return schemas[0].incompatibilities_reading(schemas[1])


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
def test_change_of_oneofs_is_compatible_when_only_one_field_could_be_set(newer: str, older: str) -> None:
    assert incompatibilities(newer, older) == []


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
            "M.a (number 1) was moved into the existing oneof y",
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
def test_change_of_oneofs_is_incompatible_when_a_value_could_be_lost(newer: str, older: str, why: str) -> None:
    (printed,) = incompatibilities(newer, older)
    assert why in printed


def test_message_may_move_to_another_file_but_must_stay_compatible() -> None:
    def outer(package: str, fields: str) -> Source:
        inner = Reference("inner.proto", f"{HEAD}package {package}; message Inner {{ {fields} }}")
        text = f'{HEAD}import "inner.proto"; message M {{ .{package}.Inner inner = 1; }}'
        return Source(Format.PROTOBUF, text, (inner,))

    here = Source(Format.PROTOBUF, f"{HEAD}message M {{ Inner inner = 1; }} message Inner {{ int32 a = 1; }}")
    for newer in (outer("one", "int32 a = 1;"), outer("two", "int32 a = 1;"), here):
        assert read_protobuf(newer).incompatibilities_reading(read_protobuf(outer("one", "int32 a = 1;"))) == []
    other = read_protobuf(outer("two", "string a = 1;"))
    (printed,) = other.incompatibilities_reading(read_protobuf(outer("one", "int32 a = 1;")))
    assert "two.Inner.a" in printed
