"""Schemas as JSON: checked before they are believed, their field ids found and given anew. Pure.

Nested types are followed with a bound on depth; every id and name in a schema is looked at once.
"""

import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, TypeAlias

from lakestream.catalog.shapes import Json
from lakestream.errors import Rejected

DEPTH_MAX: Final = 64
FIELD_ID_MAX: Final = 2147483447
"""Above it lie the ids of metadata columns."""

_Parts: TypeAlias = tuple[tuple[str, str], ...]
"""Under which names a node has ids, and the types that belong to them."""
_FIELD: Final[_Parts] = (("id", "type"),)
_LIST: Final[_Parts] = (("element-id", "element"),)
_MAP: Final[_Parts] = (("key-id", "key"), ("value-id", "value"))

_PRIMITIVE: Final = re.compile(
    r"boolean|int|long|float|double|date|time|timestamp|timestamptz|string|uuid|binary"
    r"|fixed\[\d{1,9}\]|decimal\(\s*\d{1,2}\s*,\s*\d{1,2}\s*\)"
)
_PRIMITIVE_V3: Final = re.compile(
    r"unknown|variant|timestamp_ns|timestamptz_ns|geometry(\(.{0,200}\))?|geography(\(.{0,200}\))?"
)


def check_schema(schema: Json, format_version: int) -> None:
    """Rejected, with the field's name, if it is not a schema that this format version can hold."""
    if schema.get("type", "struct") != "struct":
        raise Rejected(f"a schema is a struct, not {schema.get('type')!r}")
    seen: set[int] = set()
    for path, node, parts in _nodes(schema, "", 0):
        _check_node(path, node, parts, seen, format_version)
    identifiers = schema.get("identifier-field-ids") or []
    if not isinstance(identifiers, list):
        raise Rejected("identifier-field-ids is no list")
    for field_id in identifiers:
        if not isinstance(field_id, int) or field_id not in seen:
            raise Rejected(f"identifier field {field_id!r} is not in the schema")


def field_ids(schema: Json) -> set[int]:
    """Of all fields at all depths, elements and keys included."""
    return {field_id for _, node, parts in _nodes(schema, "", 0) for field_id in _ids(node, parts)}


def highest_field_id(schema: Json) -> int:
    return max(field_ids(schema), default=0)


def columns(schema: Json) -> dict[str, int]:
    """Every column's full name, `outer.inner` for nested ones, and its id."""
    named: dict[str, int] = {}
    for path, node, parts in _nodes(schema, "", 0):
        for id_name, part in parts:
            if id_name in node:
                named[path if parts is _FIELD else _inside(path, part)] = node[id_name]
    return named


def same_schema(one: Json, other: Json) -> bool:
    """Equal but for their own ids."""
    identifiers = [set(schema.get("identifier-field-ids") or []) for schema in (one, other)]
    return bool(_canonical(one["fields"]) == _canonical(other["fields"])) and identifiers[0] == identifiers[1]


def with_fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """The schema with ids from 1 on, as every catalog gives them to a new table, and which old id became which.

    The fields of a struct come before what is inside them: the order of the reference implementation.
    """
    counter = count(1)
    given: dict[int, int] = {}

    def fresh(old: int) -> int:
        given[old] = next(counter)
        return given[old]

    fields = _renumbered_fields(schema["fields"], fresh)
    renewed = {"type": "struct", "schema-id": 0, "fields": fields}
    if identifiers := schema.get("identifier-field-ids"):
        renewed["identifier-field-ids"] = [given[field_id] for field_id in identifiers]
    return renewed, given


def _renumbered_fields(fields: list[Json], fresh: Callable[[int], int]) -> list[Json]:
    numbered = [{**field, "id": fresh(field["id"])} for field in fields]
    return [{**field, "type": _renumbered_type(field["type"], fresh)} for field in numbered]


def _renumbered_type(kind: Any, fresh: Callable[[int], int]) -> Any:
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return {**kind, "fields": _renumbered_fields(kind["fields"], fresh)}
    if kind["type"] == "list":
        element_id = fresh(kind["element-id"])
        return {**kind, "element-id": element_id, "element": _renumbered_type(kind["element"], fresh)}
    key_id, value_id = fresh(kind["key-id"]), fresh(kind["value-id"])
    key, value = _renumbered_type(kind["key"], fresh), _renumbered_type(kind["value"], fresh)
    return {**kind, "key-id": key_id, "key": key, "value-id": value_id, "value": value}


def _nodes(kind: Any, path: str, depth: int) -> Iterator[tuple[str, Json, _Parts]]:
    """Every node that gives ids: fields of structs, and lists and maps (by the path of their field)."""
    if not isinstance(kind, dict):
        return
    if depth > DEPTH_MAX:
        raise Rejected(f"column {path[:100]!r} is nested deeper than {DEPTH_MAX} levels")
    match kind.get("type", "struct"):
        case "struct":
            yield from _struct_fields(kind, path, depth)
        case "list":
            yield path, kind, _LIST
            yield from _nodes(kind.get("element"), _inside(path, "element"), depth + 1)
        case "map":
            yield path, kind, _MAP
            for part in ("key", "value"):
                yield from _nodes(kind.get(part), _inside(path, part), depth + 1)
        case other:
            raise Rejected(f"column {path!r} has the unknown type {other!r}")


def _inside(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _struct_fields(kind: Json, path: str, depth: int) -> Iterator[tuple[str, Json, _Parts]]:
    fields = kind.get("fields")
    if not isinstance(fields, list):
        raise Rejected(f"struct {path!r} has no list of fields")
    names: set[str] = set()
    for field in fields:
        if not isinstance(field, dict) or not isinstance(name := field.get("name"), str) or not name:
            raise Rejected(f"a field of struct {path!r} has no name")
        if name in names:
            raise Rejected(f"struct {path!r} has two fields called {name!r}")
        names.add(name)
        inner = _inside(path, name)
        yield inner, field, _FIELD
        yield from _nodes(field.get("type"), inner, depth + 1)


def _check_node(path: str, node: Json, parts: _Parts, seen: set[int], format_version: int) -> None:
    ids = _ids(node, parts)
    if len(ids) != len(parts):
        raise Rejected(f"column {path!r} lacks an id")
    for field_id in ids:
        if not isinstance(field_id, int) or isinstance(field_id, bool) or not 0 <= field_id <= FIELD_ID_MAX:
            raise Rejected(f"column {path!r} has the id {field_id!r}: give a number from 0 on")
        if field_id in seen:
            raise Rejected(f"column {path!r} has the id {field_id}, which another column has too")
        seen.add(field_id)
    for _, part in parts:
        _check_type(path, node.get(part), format_version)


def _check_type(path: str, kind: Any, format_version: int) -> None:
    if isinstance(kind, dict) and "type" in kind:
        return  # looked into by itself
    if not isinstance(kind, str):
        raise Rejected(f"column {path!r} has no type")
    if _PRIMITIVE_V3.fullmatch(kind) and format_version < 3:
        raise Rejected(f"column {path!r} has the type {kind}, which format version {format_version} does not have")
    if not _PRIMITIVE.fullmatch(kind) and not _PRIMITIVE_V3.fullmatch(kind):
        raise Rejected(f"column {path!r} has the unknown type {kind[:60]!r}")


def _ids(node: Json, parts: _Parts) -> list[int]:
    return [node[name] for name, _ in parts if name in node]


def _canonical(value: Any) -> Any:
    """Without what means the same when it is left out."""
    if isinstance(value, dict):
        return {name: _canonical(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return value
