"""Validates the text of a schema and converts it to the JSON that fastavro parses.

fastavro alone would accept invalid schemas, or fail without the name of the field.

Before: the text of a schema.  After: `parse.py`, where fastavro resolves names.

A schema is valid if Java's parser accepts it, because most schemas are written for Java: `{"type": "Name"}` is the type
of that name, `error` is a record, and further attributes of a type are kept.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.schemas.avro.logical_types import is_valid

TEXT_MAX: Final = 1 * MiB
DEPTH_MAX: Final = 64
"""Levels of nested types."""
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_JSON_DEPTH_MAX: Final = 4 * DEPTH_MAX
_SIZE_MAX: Final = 2**31 - 1
_ALLOWED: Final = "use letters, digits and _"


def validated_text(text: str) -> Any:
    """Returns the validated JSON of a schema. Rejected, with the problem and its field, if it is invalid."""
    if len(text) > TEXT_MAX:
        raise Rejected(f"the schema has {len(text)} characters: at most {TEXT_MAX} are allowed")
    if (bare := text.strip()) in PRIMITIVES:
        return bare  # not JSON, but Java accepts it and clients send it
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise Rejected(f"the schema is not valid JSON: {error}") from error
    except RecursionError as error:
        raise Rejected(f"the schema is nested deeper than {DEPTH_MAX} types") from error
    _check_depth(raw)
    return _type(raw, "", 1)


def _check_depth(raw: Any) -> None:
    """Checks the depth of the whole JSON, including ignored attributes, because fastavro processes it recursively."""
    level, depth = [raw], 0
    while level:
        if depth > _JSON_DEPTH_MAX:
            raise Rejected(f"the schema is nested deeper than {DEPTH_MAX} types")
        parents = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level, depth = [child for parent in parents for child in parent], depth + 1


def _type(raw: Any, path: str, depth: int) -> Any:
    if depth > DEPTH_MAX:
        _reject(path, f"is nested deeper than {DEPTH_MAX} types")
    match raw:
        case str():
            return raw
        case list():
            return [_type(branch, path, depth + 1) for branch in raw]
        case dict() if isinstance(kind := raw.get("type"), str):
            return _typed(kind, {key: value for key, value in raw.items() if key != "type"}, path, depth)
        case {"type": list() | dict() as inner} if len(raw) == 1:
            return _type(inner, path, depth + 1)
        case {"type": _}:
            _reject(path, 'has a "type" that is not a string')
        case _:
            _reject(path, 'is not a type: use a name, a list, or an object with "type"')


def _typed(kind: str, rest: dict[str, Any], path: str, depth: int) -> Any:
    if not is_valid(kind, rest):
        rest = {name: value for name, value in rest.items() if name != "logicalType"}
    check = _CHECKED.get("record" if kind == "error" else kind)
    if check is not None:
        return check(rest, path, depth)
    if kind in PRIMITIVES:
        return {**rest, "type": kind} if rest else kind
    return kind  # the name of a type, which a reference may define


def _record(rest: dict[str, Any], path: str, depth: int) -> Any:
    name = _name(rest, path, "record")
    if not isinstance(fields := rest.get("fields"), list):
        _reject(path or name, 'is a record without a list of "fields"')
    validated, seen = [], set[str]()
    for field in fields:
        if not isinstance(field, dict) or not isinstance(field_name := field.get("name"), str):
            _reject(path or name, f"has a field without a name: {_short(field)}")
        below = f"{path}.{field_name}" if path else field_name
        if not _is_name(field_name):
            _reject(below, f"has the invalid name {field_name!r}: {_ALLOWED}")
        if field_name in seen:
            _reject(below, f"appears twice in record {name}")
        seen.add(field_name)
        if "type" not in field:
            _reject(below, 'has no "type"')
        _aliases(field, below)
        validated.append({**field, "type": _type(field["type"], below, depth + 1)})
    return {**rest, "type": "record", "fields": validated}


def _enum(rest: dict[str, Any], path: str, depth: int) -> Any:
    name = _name(rest, path, "enum")
    symbols = rest.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        _reject(path or name, 'is an enum without a list of "symbols"')
    for symbol in symbols:
        if not _is_name(symbol):
            _reject(path or name, f"has the invalid symbol {symbol!r}: {_ALLOWED}")
    if len(set(symbols)) < len(symbols):
        _reject(path or name, "has a symbol twice")
    if rest.get("default") is not None and rest["default"] not in symbols:
        _reject(path or name, f"has the default {_short(rest['default'])}, which is not one of its symbols")
    return {**rest, "type": "enum"}


def _fixed(rest: dict[str, Any], path: str, depth: int) -> Any:
    name = _name(rest, path, "fixed")
    size = rest.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _SIZE_MAX:
        _reject(path or name, 'is a fixed without "size" (number of bytes)')
    return {**rest, "type": "fixed"}


def _array(rest: dict[str, Any], path: str, depth: int) -> Any:
    if "items" not in rest:
        _reject(path, 'is an array without "items"')
    return {**rest, "type": "array", "items": _type(rest["items"], f"{path}[]", depth + 1)}


def _map(rest: dict[str, Any], path: str, depth: int) -> Any:
    if "values" not in rest:
        _reject(path, 'is a map without "values"')
    return {**rest, "type": "map", "values": _type(rest["values"], f"{path}{{}}", depth + 1)}


_CHECKED: Final[Mapping[str, Callable[[dict[str, Any], str, int], Any]]] = {
    "record": _record,
    "enum": _enum,
    "fixed": _fixed,
    "array": _array,
    "map": _map,
}


def _name(rest: dict[str, Any], path: str, kind: str) -> str:
    name, space = rest.get("name"), rest.get("namespace")
    if not isinstance(name, str) or not _is_name(name.rpartition(".")[2]):
        _reject(path, f"is a {kind} with the invalid name {_short(name)}: {_ALLOWED}")
    if space is not None and not isinstance(space, str):
        _reject(path or name, f"has the namespace {_short(space)}, which is not a string")
    _aliases(rest, path or name)
    return name


def _aliases(rest: Mapping[str, Any], path: str) -> None:
    aliases = rest.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        _reject(path, 'has "aliases" that are not a list of strings')


def _is_name(text: str) -> bool:
    return text.isidentifier()


def _short(raw: Any) -> str:
    text = json.dumps(raw, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _reject(path: str, problem: str) -> NoReturn:
    raise Rejected(f"Avro schema: {f'field {path}' if path else 'it'} {problem}")
