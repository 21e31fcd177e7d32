import json
from typing import Any

import pytest

from lakestream.cli.output.value_decoder import NotDecodable, ValueDecoder, decoder_of
from lakestream.coordination.config_values import schema_choice
from lakestream.errors import Missing, Rejected
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.value_format import ValuePart

LONG = Source(Format.AVRO, '"long"')


class Registry:
    def __init__(self, sources: dict[Any, Source]) -> None:
        self._sources = sources
        self.requests = 0

    def by_id(self, context: str, schema_id: int) -> Source:
        self.requests += 1
        if schema_id not in self._sources:
            raise Missing(f"Schema {schema_id} not found")
        return self._sources[schema_id]

    def by_subject(self, context: str, subject: str, version: int) -> Source:
        return self._sources[subject, version]


def decoder(choice: str, sources: dict[Any, Source]) -> ValueDecoder:
    return ValueDecoder("orders", ValuePart.VALUE, schema_choice(choice), ".", Registry(sources))  # type: ignore[arg-type]


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def test_values_are_decoded_by_schema_id_subject_or_as_json() -> None:
    assert decoder("registry", {7: LONG}).decode(framed(7, b"\x02")) == 1
    assert decoder("latest", {("orders-value", 0): LONG}).decode(b"\x02") == 1
    assert decoder("other@3", {("other", 3): LONG}).decode(b"\x02") == 1
    assert decoder("json", {}).decode(b'{"a": [1]}') == {"a": [1]}
    assert not decoder("none", {}).is_typed


def test_an_unknown_schema_is_requested_once() -> None:
    registry = Registry({})
    one = ValueDecoder("orders", ValuePart.VALUE, schema_choice("registry"), ".", registry)  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(NotDecodable, match="Schema 9 not found"):
            one.decode(framed(9, b""))
    assert registry.requests == 1


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"text", "does not start with a zero byte"),
        (framed(7, b""), "does not fit its schema"),
        (framed(7, b"\x02\x02"), "1 more bytes than its schema"),
    ],
)
def test_value_that_does_not_fit_is_not_decodable(value: bytes, reason: str) -> None:
    with pytest.raises(NotDecodable, match=reason):
        decoder("registry", {7: LONG}).decode(value)


def test_logical_types_and_bytes_become_json() -> None:
    fields = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "item", "type": "Item"},
    ]
    item = '{"type": "record", "name": "Item", "fields": [{"name": "n", "type": "int"}]}'
    text = json.dumps({"type": "record", "name": "Order", "fields": fields})
    decode = decoder_of(Source(Format.AVRO, text, (Reference("Item", item),)), has_indexes=True)
    assert json.loads(json.dumps(decode(b"\x00\x04\x00\x96\x02\xff\x06"))) == {
        "at": "1970-01-01T00:00:00+00:00",
        "price": "1.50",
        "raw": {"base64": "/w=="},
        "item": {"n": 3},
    }


def test_schema_whose_values_may_have_any_size_is_rejected() -> None:
    """2**40 elements in six bytes."""
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    with pytest.raises(Rejected, match="elements without bytes"):
        decoder_of(Source(Format.AVRO, json.dumps(record)), has_indexes=True)


def test_protobuf_values_have_message_indexes_only_with_a_schema_id() -> None:
    proto = 'syntax = "proto3"; message A { int32 n = 1; } message B { string some_text = 1; }'
    source = Source(Format.PROTOBUF, proto)
    assert decoder_of(source, has_indexes=True)(b"\x00\x08\x05") == {"n": 5}
    assert decoder_of(source, has_indexes=True)(b"\x02\x02\x0a\x01x") == {"some_text": "x"}
    assert decoder_of(source, has_indexes=False)(b"\x08\x05") == {"n": 5}
