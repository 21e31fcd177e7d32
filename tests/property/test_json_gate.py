"""JSON validation at produce, compared with Python's json and jsonschema, for any text, value and schema."""

import json
import os
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from lakestream.data.typed.json_schema.validator_input import validator_schema
from lakestream.data.typed.json_schema.validator_main import JsonSchemaValidator
from lakestream.data.typed.validation import check, first_reasons
from lakestream.schemas.value_format import FieldConversion, SchemaMode
from lakestream.testing.batches import make_batch

EXAMPLES = 2_000 if os.environ.get("SOAK") else 60

# Any text

NAMES = st.sampled_from(
    ["a", "b", "ab", "\\u0061", "\\\\", '\\"', "\\ud83d\\ude00", "\\uD800", "\\udc00\\ud800", "é", ""]
)
SCALARS = st.one_of(st.sampled_from(["1", "-0.5e3", "true", "null", '""']), NAMES.map(lambda name: f'"{name}"'))
SPACE = st.sampled_from(["", " ", "\n\t"])


def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.builds('"{}"{}:{}{}'.format, NAMES, SPACE, SPACE, inner)
    return st.one_of(
        st.lists(pairs, max_size=6).map(lambda some: "{" + ",".join(some) + "}"),
        st.lists(inner, max_size=4).map(lambda some: "[ " + " , ".join(some) + "]"),
    )


TEXTS = st.recursive(SCALARS, nested, max_leaves=12)
DAMAGED = st.builds(lambda text, at, end: text[:at] + text[end:], TEXTS, st.integers(0, 40), st.integers(0, 40))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _reject_constant(text: str) -> None:
    raise ValueError(text)


def is_valid(text: bytes) -> bool:
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_reject_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:  # also for a lone surrogate, which is not valid Unicode
        return False
    return True


@given(st.lists(st.one_of(TEXTS, DAMAGED).map(str.encode), min_size=1, max_size=8))
@settings(max_examples=EXAMPLES, deadline=None)
def test_invalid_texts_of_a_batch_are_found_without_a_schema(texts: list[bytes]) -> None:
    """A batch has several values, because their keys share a hash table."""
    invalid = first_reasons(check(make_batch(list(texts)), FieldConversion(SchemaMode.JSON), FieldConversion()).invalid)
    assert [*invalid] == [index for index, text in enumerate(texts) if not is_valid(text)], invalid


# Any schema

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from([0.5, 2.0, -1.5, "", "a", "ab", "b1"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
SMALL = st.integers(0, 3)
KEYWORDS = {
    "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True)),
    "enum": st.lists(VALUES, min_size=1, max_size=3, unique_by=repr),
    "const": VALUES,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-4, 4)),
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), SMALL),
    "pattern": st.sampled_from(["^a", "b$", "[0-9]", "^(a|b)+$", "^(?!a)"]),
    "uniqueItems": st.booleans(),
    "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
    "format": st.sampled_from(["date", "uuid", "email"]),
    "contentEncoding": st.just("base64"),
}


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(["a", "b", "contentEncoding"]), inner, max_size=3)
    more = {
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), some),
        **dict.fromkeys(("not", "items", "contains", "additionalProperties", "if", "then", "else"), inner),
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        "propertyNames": inner,
        "dependencies": st.dictionaries(st.sampled_from("ab"), st.one_of(inner, st.just(["c"])), max_size=2),
    }
    return st.one_of(
        st.booleans(), st.fixed_dictionaries({}, optional=KEYWORDS), st.fixed_dictionaries({}, optional=more)
    )


SCHEMAS = st.recursive(st.fixed_dictionaries({}, optional=KEYWORDS), schemas, max_leaves=5)


@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=6))
@settings(max_examples=EXAMPLES, deadline=None)
def test_values_are_valid_exactly_if_jsonschema_accepts_them(schema: Any, values: list[Any]) -> None:
    validator, reference = JsonSchemaValidator(validator_schema(json.dumps(schema))), jsonschema.Draft7Validator(schema)
    for value in values:
        reason = validator.reason(json.dumps(value).encode())
        assert (reason is None) == reference.is_valid(value), (reason, value)
