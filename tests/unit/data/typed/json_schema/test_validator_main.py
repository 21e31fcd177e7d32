"""Validation of JSON values against their JSON Schema: all drafts, references and hostile schemas."""

import io
import json
from typing import Any

import msgspec
import pytest

from lakestream.aio.worker_loop import LENGTH, handle_requests
from lakestream.data.typed.json_schema.messages import SCHEMAS_MAX, ValidationRequest, ValidationResponse
from lakestream.data.typed.json_schema.validator_input import validator_schema
from lakestream.data.typed.json_schema.validator_main import JsonSchemaValidator, RequestHandler
from lakestream.errors import Rejected

USER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer"},
        "user": {"type": "object", "properties": {"age": {"type": "integer", "maximum": 120}}},
        "country": {"enum": ["DE", "FR"]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$", "maxLength": 5},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
        "a/b": {"const": 5},
        "note": {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"by": {"minLength": 2}}}]},
    },
}
DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)


def validator(schema: Any, **references: Any) -> JsonSchemaValidator:
    named = tuple((name.replace("__", "."), json.dumps(text)) for name, text in references.items())
    return JsonSchemaValidator(validator_schema(json.dumps(schema), named))


def reason(schema: Any, value: Any, **references: Any) -> str | None:
    return validator(schema, **references).reason(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"id": 1, "user": {"age": 40}, "country": "DE", "zip": "12345", "tags": ["a"], "a/b": 5, "note": None}, None),
        ({"id": 1, "user": {"age": 200}}, "/user/age: 200 is greater than the maximum of 120"),
        ({"user": {}}, '"id" is a required property'),
        ({"id": None}, '/id: null is not of type "integer"'),
        ({"id": 1, "x": 1}, "Additional properties are not allowed ('x' was unexpected)"),
        ({"id": 1, "country": "XX"}, '/country: "XX" is not one of "DE" or "FR"'),
        ({"id": 1, "zip": "x"}, '/zip: "x" does not match "^[0-9]{5}$"'),
        ({"id": 1, "tags": []}, "/tags: the array has less than 1 item"),
        ({"id": 1, "tags": ["a", "a"]}, "/tags: the array has non-unique elements"),
        ({"id": 1, "tags": ["a", 3]}, '/tags/1: 3 is not of type "string"'),
        ({"id": 1, "a/b": 4}, "/a~1b: 5 was expected"),
        (3, '3 is not of type "object"'),
    ],
)
def test_reason_has_the_place_and_the_violated_rule(value: Any, message: str | None) -> None:
    assert reason(USER, value) == message


def test_reason_has_the_error_of_the_best_matching_alternative() -> None:
    message = reason(USER, {"id": 1, "note": {"by": "x"}})
    assert message is not None
    assert message.startswith("/note: the object is not valid under any of the schemas")
    assert message.endswith('(/note/by: "x" is shorter than 2 characters)')


def test_reason_has_a_shortened_value_and_the_whole_rule() -> None:
    message = reason(USER, {"id": 1, "zip": "x" * 10_000})
    assert message is not None
    assert "is longer than 5 characters" in message
    assert len(message) < 200


@pytest.mark.parametrize("draft", DRAFTS)
def test_values_are_validated_with_every_draft(draft: str) -> None:
    schema = {"$schema": draft, "properties": {"a": {"minimum": 3}}, "required": ["a"]}
    assert reason(schema, {"a": 3}) is None
    assert reason(schema, {"a": 2}) == "/a: 2 is less than the minimum of 3"


def test_keywords_have_the_meaning_of_their_draft() -> None:
    old = {"$schema": DRAFTS[0], "minimum": 3, "exclusiveMinimum": True}
    assert reason(old, 3) is not None
    assert reason(old, 4) is None
    new = {"$schema": DRAFTS[4], "prefixItems": [{"type": "integer"}], "items": False}
    assert reason(new, [1]) is None
    assert reason(new, [1, 2]) is not None
    odd = {"$schema": "https://acme.example/what", "exclusiveMinimum": 3}
    assert reason(odd, 3) is not None


def test_references_are_resolved_by_name_and_by_id() -> None:
    other = {"definitions": {"age": {"maximum": 120}}, "type": "object"}
    schema = {"properties": {"age": {"$ref": "other.json#/definitions/age"}}}
    assert reason(schema, {"age": 200}, other__json=other) == "/age: 200 is greater than the maximum of 120"
    named = {"$id": "https://acme.example/a/b.json", **schema}
    assert reason(named, {"age": 200}, other__json=other) is not None
    # By its own id, whatever its name is.
    own = {"$id": "https://acme.example/age#", "maximum": 120}
    assert reason({"$ref": "https://acme.example/age"}, 200, other__json=own) is not None
    # By names that are not URIs, and through each other.
    text, deep = json.dumps({"$ref": "my other"}), json.dumps({"$ref": "third"})
    chained = validator_schema(text, (("third", '{"type": "integer"}'), ("my other", deep)))
    assert JsonSchemaValidator(chained).reason(b'"x"') == '"x" is not of type "integer"'
    assert JsonSchemaValidator(chained).reason(b"3") is None


def test_defs_reference_is_resolved_in_definitions() -> None:
    """The schema registry accepts such schemas."""
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}}, "definitions": {"x": {"type": "integer"}}}
    assert reason(schema, {"a": "x"}) == '/a: "x" is not of type "integer"'


def test_schema_is_rejected_when_a_reference_is_not_registered() -> None:
    for address in ("http://127.0.0.1:1/x.json", "file:///etc/hostname", "x.json"):
        with pytest.raises(ValueError, match="neither in the schema nor one of its references"):
            validator({"$ref": address})


def test_format_and_content_keywords_are_not_asserted() -> None:
    assert reason({"type": "string", "format": "email"}, "text") is None
    assert reason({"$schema": DRAFTS[4], "format": "date"}, "text") is None
    assert reason({"contentEncoding": "base64", "contentMediaType": "application/json"}, "%") is None
    kept = {"properties": {"contentEncoding": {"const": "x"}}, "enum": [{"contentEncoding": "x"}]}
    assert reason(kept, {"contentEncoding": "x"}) is None
    assert reason(kept, {"contentEncoding": "y"}) is not None


def test_patterns_have_limits_and_invalid_ones_are_rejected() -> None:
    assert reason({"pattern": "^(a+)+$"}, "a" * 5_000 + "b") is not None
    assert reason({"pattern": "^(?=.*[A-Z]).{3,}$"}, "abC") is None
    message = reason({"pattern": "^(?!x)(a|aa)+\\1b$"}, "a" * 5_000)
    assert message is not None
    assert "backtracking" in message
    for pattern in ("[a-z", "a{1000}{1000}"):
        with pytest.raises(ValueError, match=r'/properties/a/pattern: .* is not a "regex"'):
            validator({"properties": {"a": {"pattern": pattern}}})


def test_recursive_schemas_and_deep_values_are_validated() -> None:
    tree = {"properties": {"below": {"$ref": "#"}}, "additionalProperties": False}
    value = b'{"below":' * 500 + b"{}" + b"}" * 500
    assert validator(tree).reason(value) is None
    assert validator({"allOf": [{"$ref": "#"}]}).reason(b"1") is None


def test_reason_describes_values_that_cannot_be_parsed() -> None:
    free = validator({})
    assert free.reason(b'{"a": ["\\ud800"]}') == "/a/0: the string has an unpaired surrogate"
    assert free.reason(b"1e400") == "cannot be parsed: Number out of range"
    assert free.reason(b"[1,]") == "invalid JSON: trailing comma in array (byte 3)"
    assert free.reason(b"[" * 5_000 + b"]" * 5_000) is not None
    assert free.reason(b"12345678901234567890123456789") is None


def test_schema_is_rejected_when_a_reference_is_not_json() -> None:
    with pytest.raises(Rejected, match="reference 'x' is not valid JSON"):
        validator_schema("{}", (("x", "{"),))


def test_requests_are_answered_and_schemas_evicted_in_order() -> None:
    schema = validator_schema('{"type": "integer"}')
    requests = [
        ValidationRequest(1, schema, [b"1", b'"x"']),
        ValidationRequest(1, None, [b"2"]),
        ValidationRequest(2, validator_schema('{"pattern": "["}'), [b"1"]),
    ]
    requests += [ValidationRequest(3 + number, schema, []) for number in range(SCHEMAS_MAX - 1)]
    requests += [ValidationRequest(2, None, [b"1"])]
    encoded = [msgspec.msgpack.encode(request) for request in requests]
    output = io.BytesIO()
    source = io.BytesIO(b"".join(LENGTH.pack(len(one)) + one for one in encoded) + b"\xff\xff\xff\xff")
    handle_requests(source, output, RequestHandler().respond)
    responses, rest = [], output.getvalue()
    while rest:
        size = LENGTH.unpack(rest[: LENGTH.size])[0]
        responses.append(msgspec.msgpack.decode(rest[LENGTH.size :][:size], type=ValidationResponse))
        rest = rest[LENGTH.size + size :]
    assert list(responses[0].invalid) == [(1, '"x" is not of type "integer"')]
    assert responses[1] == ValidationResponse([])
    assert "regex" in responses[2].error
    assert responses[-1] == responses[2]
