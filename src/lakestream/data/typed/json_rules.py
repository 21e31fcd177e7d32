"""What values are held against at produce: a JSON Schema with all that it refers to, as the judge wants it.

Before: checking.py, with the text of a writer.  After: judge.py, in a process of its own.

A judge takes a schema at its word, so some words are mended first, as readers of schemas here and elsewhere do it: a
dialect that nobody knows is draft 7, addresses have no spaces, `#/$defs/x` is looked for below `definitions` too. And
what is said of the contents of a text (`contentEncoding`, `contentMediaType`) goes: from 2019-09 on it is only a
remark, and no serializer looks at it.
"""

import json
from typing import Any, Final
from urllib.parse import quote

from lakestream.data.typed.judged import Rules
from lakestream.schemas.json.documents import address_of_dialect, parsed

_ADDRESSES: Final = ("$ref", "$dynamicRef", "$recursiveRef", "$id", "id")
_REMARKS: Final = ("contentEncoding", "contentMediaType")
_DATA: Final = ("enum", "const", "default", "examples")
"""Words that have values below them, not schemas."""
_NAMES: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies")
"""Words that have names below them, and only then schemas."""
_IN_ADDRESSES: Final = "%/:=&?~#+!$,;'@()*[]"


def rules_of(text: str, references: tuple[tuple[str, str], ...] = ()) -> Rules:
    """Rejected: one of them is no JSON Schema."""
    contents = parsed(text, "the schema")
    others: dict[str, str] = {}
    for name, other in references:
        below = parsed(other, f"reference {name!r}")
        for known_as in (name, below.get("$id") or below.get("id") if isinstance(below, dict) else None):
            if isinstance(known_as, str):
                others.setdefault(_address(known_as).partition("#")[0], _mended(below))
    return Rules(address_of_dialect(contents), _mended(contents), tuple(others.items()))


def _address(text: str) -> str:
    """As it may stand in a URI."""
    return quote(text, safe=_IN_ADDRESSES, errors="surrogatepass")


def _mended(contents: Any) -> str:
    if isinstance(contents, dict):
        is_renamed = "definitions" in contents and "$defs" not in contents
        contents = _schema(contents, is_renamed) | {"$schema": address_of_dialect(contents)}
    return json.dumps(contents)  # escaped: half of a character cannot be sent as it is


def _schema(contents: Any, is_renamed: bool) -> Any:
    if isinstance(contents, list):
        return [_schema(one, is_renamed) for one in contents]
    if not isinstance(contents, dict):
        return contents
    mended: dict[str, Any] = {}
    for word, value in contents.items():
        if isinstance(value, str) and word in _REMARKS:
            continue
        if isinstance(value, str) and word in _ADDRESSES:
            mended[word] = _address(value.replace("#/$defs/", "#/definitions/") if is_renamed else value)
        elif word in _DATA:
            mended[word] = value
        elif isinstance(value, dict) and word in _NAMES:
            mended[word] = {name: _schema(below, is_renamed) for name, below in value.items()}
        else:
            mended[word] = _schema(value, is_renamed)
    return mended
