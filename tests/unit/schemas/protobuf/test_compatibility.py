"""Compatible and incompatible changes of a Protobuf schema."""

from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf


def incompatibilities(newer: str, older: str, syntax: str = "proto3") -> list[str]:
    now, before = (read_protobuf(Source(Format.PROTOBUF, f'syntax = "{syntax}"; {text}')) for text in (newer, older))
    return now.incompatibilities_reading(before)


def each(cases: list[tuple[str, str]]) -> list[list[str]]:
    """Returns the incompatibilities of each case. All cases are in one schema, because protoc is started for each."""
    others = "message R { R r = 1; }"
    others += "message B { int32 a = 1; } message C { int32 a = 1; } enum E { ZERO = 0; } enum F { NONE = 0; }"
    newer, older = (
        others + "".join(f"message A{place} {{ {case[side]} }}" for place, case in enumerate(cases)) for side in (0, 1)
    )
    found = incompatibilities(newer, older)
    return [
        [message for message in found if f"A{place}." in message or f"A{place} " in message]
        for place in range(len(cases))
    ]


def test_compatible_changes_have_no_incompatibilities() -> None:
    cases = [
        ("int32 a = 1; int32 b = 2;", "int32 a = 1;"),
        ("int32 a = 1;", "int32 a = 1; int32 b = 2;"),
        ("int32 renamed = 1;", "int32 a = 1;"),
        ("int64 a = 1;", "int32 a = 1;"),
        ("bool a = 1;", "uint64 a = 1;"),
        ("E a = 1;", "int32 a = 1;"),
        ("F a = 1;", "E a = 1;"),
        ("sint64 a = 1;", "sint32 a = 1;"),
        ("sfixed32 a = 1;", "fixed32 a = 1;"),
        ("string a = 1;", "bytes a = 1;"),
        ("repeated string a = 1;", "string a = 1;"),
        ("B a = 1;", "repeated B a = 1;"),
        ("optional int32 a = 1;", "int32 a = 1;"),
        ("oneof x { int32 a = 1; }", "int32 a = 1;"),
        ("oneof x { int32 a = 1; int32 b = 2; }", "int32 a = 1;"),
        ("oneof x { int32 a = 1; int32 b = 2; int32 c = 3; }", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("int32 a = 1; int32 b = 2;", "oneof x { int32 a = 1; int32 b = 2; }"),
        ("map<int32, string> a = 1;", "map<int64, bytes> a = 1;"),
        ("R a = 1;", "R a = 1;"),
    ]
    for case, found in zip(cases, each(cases), strict=True):
        assert found == [], case


def test_incompatible_changes_are_reported() -> None:
    cases = [
        ("string a = 1;", "int32 a = 1;", ".a (number 1) changed from int32 to string"),
        ("sint32 a = 1;", "int32 a = 1;", "changed from int32 to sint32"),
        ("float a = 1;", "double a = 1;", "changed from double to float"),
        ("fixed64 a = 1;", "fixed32 a = 1;", "changed from fixed32 to fixed64"),
        ("string a = 1;", "E a = 1;", "changed from E to string"),
        ("C a = 1;", "B a = 1;", "changed from B to C"),
        ("B a = 1;", "bytes a = 1;", "changed from bytes to B"),
        ("repeated int32 a = 1;", "int32 a = 1;", "(number 1) became repeated"),
        ("int32 a = 1;", "repeated int32 a = 1;", "(number 1) is no longer repeated"),
        (
            "oneof x { int32 a = 1; }",
            "oneof x { int32 a = 1; int32 b = 2; }",
            ".b (number 2) was removed from the oneof",
        ),
        ("oneof x { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", "a, b of A10 were moved into one oneof"),
        (
            "oneof x { int32 a = 1; int32 b = 2; }",
            "oneof x { int32 a = 1; } int32 b = 2;",
            ".b (number 2) was moved into the existing oneof",
        ),
        ("map<string, string> a = 1;", "map<int32, string> a = 1;", "changed from int32 to string"),
        ("repeated B a = 1;", "map<int32, string> a = 1;", "changed from a map to B"),
    ]
    for (_, _, why), found in zip(cases, each([case[:2] for case in cases]), strict=True):
        assert len(found) == 1, why
        assert why in found[0]


def test_changes_of_required_fields_are_reported() -> None:
    newer = "message A { required int32 a = 1; } message B {} message C { required int32 a = 1; } message D {}"
    older = "message A {} message B { required int32 b = 1; } message C { optional int32 a = 1; } message D {}"
    assert incompatibilities(newer, older, "proto2") == [
        "the required field A.a (number 1) was added",
        "the required field B.b (number 1) was removed",
        "the field C.a (number 1) became required",
    ]
    assert (
        incompatibilities("message A { optional int32 a = 1; }", "message A { required int32 a = 1; }", "proto2") == []
    )


def test_removed_messages_are_reported() -> None:
    assert incompatibilities("message A {}", "message A {} message B {}") == ["the message B was removed"]
    assert incompatibilities("message A {}", "message A { message B {} }") == ["the message A.B was removed"]
    assert incompatibilities("message A {} message B {}", "message B {}") == []


def test_change_of_the_package_is_compatible() -> None:
    text = "message A { B b = 1; } message B { int32 a = 1; }"
    assert incompatibilities("package x;" + text, "package y;" + text) == []
    assert incompatibilities("package x;" + text, text) == []


def test_schema_of_another_format_is_incompatible() -> None:
    class Other:
        source = Source(Format.AVRO, "{}")

    schema = read_protobuf(Source(Format.PROTOBUF, 'syntax = "proto3"; message A {}'))
    assert "AVRO" in schema.incompatibilities_reading(Other())[0]  # type: ignore[arg-type]


def test_each_incompatibility_is_reported_once_when_messages_are_used_twice() -> None:
    def doubling(leaf: str) -> str:
        inner = "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }}" for n in range(60))
        return f"{inner} message M60 {{ {leaf} a = 1; }}"

    assert incompatibilities(doubling("int64"), doubling("int32")) == []
    assert incompatibilities(doubling("string"), doubling("int32")) == [
        "the field M60.a (number 1) changed from int32 to string"
    ]


def test_number_of_incompatibilities_is_limited() -> None:
    older, newer = ("".join(f"{kind} f{n} = {n};" for n in range(1, 301)) for kind in ("int32", "string"))
    assert len(incompatibilities(f"message M {{ {newer} }}", f"message M {{ {older} }}")) == 100
