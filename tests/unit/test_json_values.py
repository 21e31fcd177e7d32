"""The values of JSON text are counted as a parser would find them, or above that."""

import json
from typing import Any

import pytest

from lakestream.json_values import has_more_values


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
