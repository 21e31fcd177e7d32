"""Validates schemas in JSON, lists their field ids and reassigns them. Pure.

The depth of nested types is bounded, and every id and name of a schema is visited once.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from lakestream.catalog.table_metadata.json_model import Json
from lakestream.errors import Rejected

DEPTH_MAX: Final = 64
FIELDS_MAX: Final = 20_000
"""Of a new schema, at all depths."""
FIELD_ID_MAX: Final = 2147483447
"""Higher ids are those of metadata columns."""

_Parts: TypeAlias = tuple[tuple[str, str], ...]
"""The names under which a node has ids, each with the name of its type."""
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


def check_schema(schema: Json, format_version: int, *, is_new: bool = True) -> None:
    """Raises Rejected, with the field's name, if the schema is not valid in this format version.

    `is_new`: the number of its columns is limited.
    """
    if schema.get("type", "struct") != "struct":
        raise Rejected(f"schema has the type {schema.get('type')!r}: it must be a struct")
    seen: set[int] = set()
    for place, (path, node, parts) in enumerate(_nodes(schema, "", 0)):
        if is_new and place == FIELDS_MAX:
            raise Rejected(f"the schema has more than {FIELDS_MAX} columns, including nested ones: leave some out")
        _check_node(path, node, parts, seen, format_version)
    identifiers = schema.get("identifier-field-ids") or []
    if not isinstance(identifiers, list):
        raise Rejected("identifier-field-ids is not a list")
    for field_id in identifiers:
        if not isinstance(field_id, int) or field_id not in seen:
            raise Rejected(f"identifier field {field_id!r} is not in the schema")


class Fields(NamedTuple):
    """The fields of a schema at all depths, also elements, keys and values."""

    by_name: dict[str, int]
    ids: set[int]


def fields_of(schema: Json) -> Fields:
    return Fields(columns(schema), field_ids(schema))


def field_ids(schema: Json) -> set[int]:
    """Returns the ids of all fields at all depths, also of elements, keys and values."""
    return {field_id for _, node, parts in _nodes(schema, "", 0) for field_id in _ids(node, parts)}


def highest_field_id(schema: Json) -> int:
    return max(field_ids(schema), default=0)


def columns(schema: Json) -> dict[str, int]:
    """Returns every column's id by full name, `outer.inner` for nested ones."""
    named: dict[str, int] = {}
    for path, node, parts in _nodes(schema, "", 0):
        for id_name, part in parts:
            if id_name in node:
                named[path if parts is _FIELD else _inside(path, part)] = node[id_name]
    return named


def schema_meaning(schema: Json) -> bytes:
    """Returns equal bytes for schemas that differ at most in their schema ids."""
    identifiers = sorted(set(map(str, schema.get("identifier-field-ids") or [])))
    text = msgspec.json.encode([_canonical(schema["fields"]), identifiers], order="deterministic")
    return hashlib.sha256(text).digest()


def with_fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """Returns the schema with ids from 1 on, as catalogs assign them to a new table, and the new ids by old id.

    The fields of a struct are numbered before their nested fields, as in the reference implementation.
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
    """Yields every node that has ids: fields of structs, and lists and maps (with the path of their field)."""
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
            raise Rejected(f"struct {path!r} has two fields named {name!r}")
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
            raise Rejected(f"column {path!r} has the id {field_id!r}: use a number from 0 to {FIELD_ID_MAX}")
        if field_id in seen:
            raise Rejected(f"column {path!r} has the id {field_id} of another column")
        seen.add(field_id)
    for _, part in parts:
        _check_type(path, node.get(part), format_version)


def _check_type(path: str, kind: Any, format_version: int) -> None:
    if isinstance(kind, dict) and "type" in kind:
        return  # a node of its own
    if not isinstance(kind, str):
        raise Rejected(f"column {path!r} has no type")
    if _PRIMITIVE_V3.fullmatch(kind) and format_version < 3:
        raise Rejected(f"column {path!r} has the type {kind}, which format version {format_version} does not have")
    if not _PRIMITIVE.fullmatch(kind) and not _PRIMITIVE_V3.fullmatch(kind):
        raise Rejected(f"column {path!r} has the unknown type {kind[:60]!r}")


def _ids(node: Json, parts: _Parts) -> list[int]:
    return [node[name] for name, _ in parts if name in node]


def _canonical(value: Any) -> Any:
    """Returns the value without fields that are null, which mean the same as absent ones."""
    if isinstance(value, dict):
        return {name: _canonical(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    return value
