"""JSON values against all that a schema demands: every draft, references, and what strangers think up."""

import io
import json
from typing import Any

import msgspec
import pytest

from lakestream.data.typed.json_rules import rules_of
from lakestream.data.typed.judge import Judge, main
from lakestream.data.typed.judged import LENGTH, RULES_MAX, Answer, Ask
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


def judge(schema: Any, **references: Any) -> Judge:
    named = tuple((name.replace("__", "."), json.dumps(text)) for name, text in references.items())
    return Judge(rules_of(json.dumps(schema), named))


def reason(schema: Any, value: Any, **references: Any) -> str | None:
    return judge(schema, **references).reason(json.dumps(value).encode())


@pytest.mark.parametrize(
    ("value", "said"),
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
def test_the_place_and_the_rule(value: Any, said: str | None) -> None:
    assert reason(USER, value) == said


def test_what_the_nearest_of_several_minds() -> None:
    said = reason(USER, {"id": 1, "note": {"by": "x"}})
    assert said is not None
    assert said.startswith("/note: the object is not valid under any of the schemas")
    assert said.endswith('(/note/by: "x" is shorter than 2 characters)')


def test_long_values_are_cut_and_the_rule_is_not() -> None:
    said = reason(USER, {"id": 1, "zip": "x" * 10_000})
    assert said is not None
    assert "is longer than 5 characters" in said
    assert len(said) < 200


@pytest.mark.parametrize("draft", DRAFTS)
def test_every_draft(draft: str) -> None:
    schema = {"$schema": draft, "properties": {"a": {"minimum": 3}}, "required": ["a"]}
    assert reason(schema, {"a": 3}) is None
    assert reason(schema, {"a": 2}) == "/a: 2 is less than the minimum of 3"


def test_words_of_a_draft() -> None:
    old = {"$schema": DRAFTS[0], "minimum": 3, "exclusiveMinimum": True}
    assert reason(old, 3) is not None
    assert reason(old, 4) is None
    new = {"$schema": DRAFTS[4], "prefixItems": [{"type": "integer"}], "items": False}
    assert reason(new, [1]) is None
    assert reason(new, [1, 2]) is not None
    odd = {"$schema": "https://acme.example/what", "exclusiveMinimum": 3}
    assert reason(odd, 3) is not None


def test_references_by_their_names() -> None:
    other = {"definitions": {"age": {"maximum": 120}}, "type": "object"}
    schema = {"properties": {"age": {"$ref": "other.json#/definitions/age"}}}
    assert reason(schema, {"age": 200}, other__json=other) == "/age: 200 is greater than the maximum of 120"
    named = {"$id": "https://acme.example/a/b.json", **schema}
    assert reason(named, {"age": 200}, other__json=other) is not None
    # By an id of its own, whatever the name is.
    own = {"$id": "https://acme.example/age#", "maximum": 120}
    assert reason({"$ref": "https://acme.example/age"}, 200, other__json=own) is not None
    # By names that are no addresses, and through one another.
    text, deep = json.dumps({"$ref": "my other"}), json.dumps({"$ref": "third"})
    rules = rules_of(text, (("third", '{"type": "integer"}'), ("my other", deep)))
    assert Judge(rules).reason(b'"x"') == '"x" is not of type "integer"'
    assert Judge(rules).reason(b"3") is None


def test_definitions_that_changed_their_name() -> None:
    """As the registry takes it."""
    schema = {"properties": {"a": {"$ref": "#/$defs/x"}}, "definitions": {"x": {"type": "integer"}}}
    assert reason(schema, {"a": "x"}) == '/a: "x" is not of type "integer"'


def test_nothing_is_fetched() -> None:
    for address in ("http://127.0.0.1:1/x.json", "file:///etc/hostname", "x.json"):
        with pytest.raises(ValueError, match="neither in the schema nor one of its references"):
            judge({"$ref": address})


def test_remarks_are_not_asserted() -> None:
    assert reason({"type": "string", "format": "email"}, "nobody") is None
    assert reason({"$schema": DRAFTS[4], "format": "date"}, "nobody") is None
    assert reason({"contentEncoding": "base64", "contentMediaType": "application/json"}, "%") is None
    kept = {"properties": {"contentEncoding": {"const": "x"}}, "enum": [{"contentEncoding": "x"}]}
    assert reason(kept, {"contentEncoding": "x"}) is None
    assert reason(kept, {"contentEncoding": "y"}) is not None


def test_patterns_are_bounded() -> None:
    assert reason({"pattern": "^(a+)+$"}, "a" * 5_000 + "b") is not None
    assert reason({"pattern": "^(?=.*[A-Z]).{3,}$"}, "abC") is None
    said = reason({"pattern": "^(?!x)(a|aa)+\\1b$"}, "a" * 5_000)
    assert said is not None
    assert "backtracking" in said
    for pattern in ("[a-z", "a{1000}{1000}"):
        with pytest.raises(ValueError, match=r'/properties/a/pattern: .* is not a "regex"'):
            judge({"properties": {"a": {"pattern": pattern}}})


def test_schemas_within_themselves_and_deep_values() -> None:
    tree = {"properties": {"below": {"$ref": "#"}}, "additionalProperties": False}
    value = b'{"below":' * 500 + b"{}" + b"}" * 500
    assert judge(tree).reason(value) is None
    assert judge({"allOf": [{"$ref": "#"}]}).reason(b"1") is None


def test_what_cannot_be_read_is_said() -> None:
    free = judge({})
    assert free.reason(b'{"a": ["\\ud800"]}') == "/a/0: the text has half of a surrogate pair"
    assert free.reason(b"1e400") == "it cannot be read: Number out of range"
    assert free.reason(b"[1,]") == "it is no JSON: trailing comma in array (byte 3)"
    assert free.reason(b"[" * 5_000 + b"]" * 5_000) is not None
    assert free.reason(b"12345678901234567890123456789") is None


def test_a_reference_that_is_no_schema() -> None:
    with pytest.raises(Rejected, match="reference 'x' is no JSON"):
        rules_of("{}", (("x", "{"),))


def test_a_process_that_is_asked() -> None:
    rules = rules_of('{"type": "integer"}')
    asks = [Ask(1, rules, [b"1", b'"x"']), Ask(1, None, [b"2"]), Ask(2, rules_of('{"pattern": "["}'), [b"1"])]
    asks += [Ask(3 + number, rules, []) for number in range(RULES_MAX - 1)] + [Ask(2, None, [b"1"])]
    written = [msgspec.msgpack.encode(ask) for ask in asks]
    said = io.BytesIO()
    main(io.BytesIO(b"".join(LENGTH.pack(len(one)) + one for one in written) + b"\xff\xff\xff\xff"), said)
    answers, rest = [], said.getvalue()
    while rest:
        size = LENGTH.unpack(rest[: LENGTH.size])[0]
        answers.append(msgspec.msgpack.decode(rest[LENGTH.size :][:size], type=Answer))
        rest = rest[LENGTH.size + size :]
    assert list(answers[0].wrong) == [(1, '"x" is not of type "integer"')]
    assert answers[1] == Answer([])
    assert "regex" in answers[2].refusal
    assert answers[-1] == answers[2]
