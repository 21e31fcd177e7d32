"""Prepares a JSON Schema with its references for the validator process, which validates values at produce.

Before: validation.py, with the text of a writer schema.  After: validator_main.py, in its own process.

The validator library is strict, so schemas are normalized first, as other readers of schemas do: an unknown dialect is
draft 7, URIs have no spaces, `#/$defs/x` may also be below `definitions`. The keywords for the content of strings
(`contentEncoding`, `contentMediaType`) are removed: from 2019-09 on they are annotations, and serializers ignore them.
"""

import json
from typing import Any, Final
from urllib.parse import quote

from lakestream.data.typed.json_schema.messages import ValidatorSchema
from lakestream.schemas.json.references import dialect_uri, parse_json

_ADDRESSES: Final = ("$ref", "$dynamicRef", "$recursiveRef", "$id", "id")
_ANNOTATIONS: Final = ("contentEncoding", "contentMediaType")
_DATA: Final = ("enum", "const", "default", "examples")
"""Keywords that contain values, not schemas."""
_NAMES: Final = ("properties", "patternProperties", "definitions", "$defs", "dependentSchemas", "dependencies")
"""Keywords that contain a map of names to schemas."""
_IN_ADDRESSES: Final = "%/:=&?~#+!$,;'@()*[]"


def validator_schema(text: str, references: tuple[tuple[str, str], ...] = ()) -> ValidatorSchema:
    """Returns the normalized schema. Rejected: it or a reference is not a JSON Schema."""
    contents = parse_json(text, "the schema")
    others: dict[str, str] = {}
    for name, other in references:
        below = parse_json(other, f"reference {name!r}")
        for address in (name, below.get("$id") or below.get("id") if isinstance(below, dict) else None):
            if isinstance(address, str):
                others.setdefault(_address(address).partition("#")[0], _normalized(below))
    return ValidatorSchema(dialect_uri(contents), _normalized(contents), tuple(others.items()))


def _address(text: str) -> str:
    """Escapes characters that a URI must not contain."""
    return quote(text, safe=_IN_ADDRESSES, errors="surrogatepass")


def _normalized(contents: Any) -> str:
    if isinstance(contents, dict):
        is_renamed = "definitions" in contents and "$defs" not in contents
        contents = _schema(contents, is_renamed) | {"$schema": dialect_uri(contents)}
    return json.dumps(contents)  # ASCII only: an unpaired surrogate has no UTF-8 encoding


def _schema(contents: Any, is_renamed: bool) -> Any:
    if isinstance(contents, list):
        return [_schema(one, is_renamed) for one in contents]
    if not isinstance(contents, dict):
        return contents
    normalized: dict[str, Any] = {}
    for keyword, value in contents.items():
        if isinstance(value, str) and keyword in _ANNOTATIONS:
            continue
        if isinstance(value, str) and keyword in _ADDRESSES:
            normalized[keyword] = _address(value.replace("#/$defs/", "#/definitions/") if is_renamed else value)
        elif keyword in _DATA:
            normalized[keyword] = value
        elif isinstance(value, dict) and keyword in _NAMES:
            normalized[keyword] = {name: _schema(below, is_renamed) for name, below in value.items()}
        else:
            normalized[keyword] = _schema(value, is_renamed)
    return normalized
