"""Protobuf schemas as text, as descriptors and mixed; message indexes; invalid schemas."""

import base64

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from lakestream.errors import Rejected, Unavailable
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.protobuf import message_indexes, protoc
from lakestream.schemas.protobuf.imports import BYTES_MAX
from lakestream.schemas.protobuf.schema import ProtobufSchema, read_protobuf
from lakestream.schemas.protobuf.well_known_types import WELL_KNOWN_FILES

ORDER = """
syntax = "proto3";
package shop;
import "confluent/meta.proto";
import "confluent/types/decimal.proto";
import "google/protobuf/timestamp.proto";
import "google/type/date.proto";
import "shop/customer.proto";
option java_package = "shop.java";
message Order {
  reserved 50 to 60, 70;
  reserved "old";
  string id = 1;
  repeated int32 counts = 3;
  Customer customer = 2 [deprecated = true];
  map<string, Line> lines = 4;
  message Line { sint64 cents = 1; }
  optional uint64 size = 5;
  oneof kind { string text = 6; google.type.Date day = 7; }
  google.protobuf.Timestamp at = 8;
  confluent.type.Decimal price = 9 [(confluent.field_meta).doc = "in \\"euro\\""];
  enum State { option allow_alias = true; NEW = 0; FRESH = 0; DONE = -1; }
  State state = 10 [json_name = "status"];
}
service Orders { rpc Watch (stream Order) returns (stream Order) { option deprecated = true; } }
"""
CUSTOMER = """
syntax = "proto2";
package shop;
message Customer {
  required string name = 1 [default = "a \\"b\\" \\303\\244"];
  optional group Address = 2 { repeated bool known = 1 [packed = true]; }
  oneof way { float walked = 3; bytes flown = 4; }
  extensions 100 to 199, 1000 to max;
  extend Customer { optional bytes raw = 100 [default = "\\001\\n"]; }
  optional double most = 5 [default = inf];
}
extend Customer { repeated Customer friends = 101; }
"""


def read(text: str, *references: tuple[str, str]) -> ProtobufSchema:
    return read_protobuf(Source(Format.PROTOBUF, text, tuple(Reference(name, printed) for name, printed in references)))


def test_printed_text_compiles_to_the_same_descriptor() -> None:
    customer = read(CUSTOMER)
    assert read(customer.text).serialized == customer.serialized
    order = read(ORDER, ("shop/customer.proto", CUSTOMER))
    again = read(order.text, ("shop/customer.proto", customer.text))
    assert again.serialized == order.serialized
    assert again.text == order.text


def test_schema_and_references_may_mix_text_and_descriptors() -> None:
    customer = read(CUSTOMER).serialized
    order = read(ORDER, ("shop/customer.proto", CUSTOMER))
    for text in (ORDER, order.serialized):
        for reference in (CUSTOMER, customer):
            assert read(text, ("shop/customer.proto", reference)).canonical == order.canonical


def test_canonical_text_ignores_comments_and_the_order_of_fields() -> None:
    one = read('syntax = "proto3"; message A { int32 b = 2; /* first */ int32 a = 1; }')
    other = read('syntax = "proto3";\nmessage A {\n  int32 a = 1;\n  int32 b = 2;\n}\n')
    assert one.canonical == other.canonical == other.text
    assert one.text != other.text


def test_printed_text_keeps_the_order_of_nested_messages() -> None:
    text = 'syntax = "proto3"; message A { map<int32, B> z = 9; message B { int32 b = 1; } map<int32, B> y = 1; }'
    schema = read(text)
    for printed in (schema.text, schema.canonical):
        assert [nested.name for nested in read(printed).descriptor.nested_types] == ["ZEntry", "B", "YEntry"]


def test_edition_schema_is_parsed_and_printed() -> None:
    schema = read('edition = "2023"; message A { int32 a = 1 [features.field_presence = IMPLICIT]; int32 b = 2; }')
    assert 'edition = "2023";' in schema.text
    assert read(schema.text).serialized == schema.serialized
    assert [field.has_presence for field in schema.descriptor.fields] == [False, True]


@pytest.mark.parametrize("name", ["google/protobuf/struct.proto", "google/protobuf/any.proto", "confluent/meta.proto"])
def test_descriptor_may_import_well_known_files(name: str) -> None:
    schema = read(f'syntax = "proto3"; import "{name}"; message A {{ int32 a = 1; }}')
    assert read(schema.serialized).text == schema.text


def test_all_well_known_files_compile() -> None:
    imports = "".join(f'import "{name}";' for name in WELL_KNOWN_FILES)
    assert read(f'syntax = "proto3"; {imports} message A {{ google.type.PostalAddress a = 1; }}').descriptor.fields


def test_message_is_selected_by_its_indexes() -> None:
    source = Source(Format.PROTOBUF, 'syntax = "proto3"; message A {} message B { message C { int32 c = 1; } }')
    assert read_protobuf(source, (1, 0)).descriptor.full_name == "B.C"
    assert read_protobuf(source).descriptor.full_name == "A"
    with pytest.raises(Rejected, match=r"no message \[2\]: it has A, B"):
        read_protobuf(source, (2,)).shape()


@pytest.mark.parametrize("message", [(0,), (1,), (0, 0), (3, 200, 70_000)])
def test_message_indexes_are_decoded_as_they_were_encoded(message: tuple[int, ...]) -> None:
    printed = message_indexes.encode(message)
    assert message_indexes.decode(printed + b"\1\2") == (message, len(printed))
    assert all(message_indexes.decode(printed[:cut]) is None for cut in range(len(printed)))


def test_indexes_of_the_first_message_are_one_byte() -> None:
    assert message_indexes.encode(()) == message_indexes.encode((0,)) == b"\0"
    assert message_indexes.decode(b"\x02\x00rest") == ((0,), 2)
    assert message_indexes.decode(b"\x01") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("message A {", r"schema.proto:1:12: .*missing '}'"),
        ('syntax = "proto3";\nmessage A {\n  B b = 1;\n}', r'schema.proto:3:3: "B" is not defined'),
        ('syntax = "proto3"; import "/etc/passwd";', "/etc/passwd: File not found"),
        ('syntax = "proto3"; import "../x.proto";', "not allowed in the virtual path"),
        ('syntax = "proto3"; import "schema.proto"; message A {}', "schema.proto"),
        ("AAAA", "base64, but not of a FileDescriptorProto"),
        ("message A {" * 1000, "recursion"),
        ("\0\1", "control characters"),
        ("a" * (BYTES_MAX + 1), "at most 4 MiB"),
    ],
)
def test_invalid_schema_is_rejected_with_the_place(text: str, why: str) -> None:
    with pytest.raises(Rejected, match=why):
        read(text)


@pytest.mark.parametrize("name", ["", "/etc/x.proto", "../x.proto", "a/../b.proto", "a//b.proto", "a\0b", "x" * 300])
def test_reference_is_rejected_when_its_name_is_not_a_relative_path(name: str) -> None:
    with pytest.raises(Rejected, match="has no valid name"):
        read('syntax = "proto3"; message A {}', (name, 'syntax = "proto3";'))


def test_references_are_rejected_when_their_names_conflict() -> None:
    with pytest.raises(Rejected, match="two references have the name"):
        read('syntax = "proto3"; message A {}', ("a.proto", "message A {}"), ("a.proto", "message B {}"))
    with pytest.raises(Rejected, match="cannot be used"):
        read('syntax = "proto3"; message A {}', ("a", "message A {}"), ("a/b", "message B {}"))


def test_descriptor_is_rejected_when_its_imports_are_missing_or_cyclic() -> None:
    lone = read(ORDER, ("shop/customer.proto", CUSTOMER)).serialized
    with pytest.raises(Rejected, match=r"imports 'shop/customer.proto': register it as a reference"):
        read(lone)
    a, b = (
        read(f'syntax = "proto3"; import "{name}"; message M{name[0]} {{}}', (name, "message X {}")).serialized
        for name in ("a.proto", "b.proto")
    )
    with pytest.raises(Rejected, match="cyclic import"):
        read(a, ("a.proto", b), ("b.proto", a))


def test_references_are_rejected_when_nested_too_deeply() -> None:
    reference = Reference("a0.proto", "message A {}")
    for depth in range(200):
        reference = Reference(f"b{depth}.proto", "message A {}", (reference,))
    with pytest.raises(Rejected, match="nested deeper"):
        read_protobuf(Source(Format.PROTOBUF, "message A {}", (reference,)))


def test_descriptor_is_rejected_when_protoc_would_not_create_it() -> None:
    """The library that loads descriptors accepts these."""
    file = FileDescriptorProto(name="x.proto", syntax="proto3")
    entry = file.message_type.add(name="A").nested_type.add(name="BEntry")
    entry.options.map_entry = True
    with pytest.raises(Rejected, match="invalid map entry BEntry"):
        read(base64.b64encode(file.SerializeToString()).decode())
    with pytest.raises(Rejected, match="not UTF-8"):
        read(base64.b64encode(b"\x12\x01\xff").decode())


def test_error_is_unavailable_when_protoc_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'syntax = "proto3"; message Lonely {}'
    monkeypatch.setattr(protoc, "_CHILD", "import nothing_like_this")
    with pytest.raises(Unavailable, match="nothing_like_this"):
        read(text)
    monkeypatch.setattr(protoc, "_CHILD", "import time; time.sleep(60)")
    monkeypatch.setattr(protoc, "_SECONDS_MAX", 0.2)
    with pytest.raises(Rejected, match=r"does not compile within 0.2 s"):
        read(text)
