"""The values and the levels of JSON text are counted as a parser would find them, values also above that."""

import json
from typing import Any

import pytest

from lakestream.json_values import NESTING_MAX, has_more_values, is_nested_too_deeply


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ([[]] * 100, 200),
        ([{}] * 100, 200),
        (dict.fromkeys(map(str, range(100)), ""), 100),
        ([1] * 100, 100),
        ({"a": ",[{" * 1_000, "b": '"' + "," * 1_000 + '\\"[[[\\\\"'}, 2),
        ({'\\"' + "," * 100: '\\\\"' * 100}, 1),
    ],
)
def test_values_are_counted_outside_of_strings(value: Any, count: int) -> None:
    text = json.dumps(value, separators=(",", ":")).encode()
    assert not has_more_values(text, count)
    assert has_more_values(text, count - 1) or count == 1


def test_texts_of_very_many_strings_have_more_values() -> None:
    assert has_more_values(b"[" + b'"",' * 1_000 + b'""]', 100)
    assert has_more_values(b'"' * 1_001, 100) is False, "few marks are few values, whatever the text is"


def test_text_is_nested_too_deeply_when_brackets_outside_of_strings_are() -> None:
    """Python's functions that call themselves for each level raised RecursionError, and the client got status 500."""
    for opening, closing in (("[", "]"), ('{"a\\"[":', "}")):
        for levels in (NESTING_MAX, NESTING_MAX + 1):
            text = opening * levels + '"[[{"' + closing * levels
            assert json.loads(text)
            assert is_nested_too_deeply(text.encode()) == (levels > NESTING_MAX)
    assert not is_nested_too_deeply(json.dumps([[], {}, "[" * 1_000] * 1_000).encode())
