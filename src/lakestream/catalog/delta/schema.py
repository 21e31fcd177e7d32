"""A table's columns in Delta's words. Pure.

Where a column is called in the table as it is in the files, Delta needs to know nothing more, and every reader of Delta
can read the table. Only where a name differs (a column was renamed, or took the name of a dropped one), or is one that
Delta does not allow, columns are mapped: then the schema says of each what it is called in the files. By name, not by
field id: DuckDB and delta-rs go by the name in either mode.

All columns may be null: that they never are is held by who writes the table, and one feature of Delta less is wanted.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lakestream.catalog.parquet_names import fields_of
from lakestream.catalog.shapes import Json

MAPPING_MODE: Final = "delta.columnMapping.mode"
MAPPING_ID_MAX: Final = "delta.columnMapping.maxColumnId"
_MAPPED_ID: Final = "delta.columnMapping.id"
_MAPPED_NAME: Final = "delta.columnMapping.physicalName"
_OUR_ID: Final = "lakestream.id"
"""Where columns are not mapped: Iceberg's field id, to know a column again that was renamed."""
COLUMN_MAPPING: Final = "columnMapping"
TIMESTAMP_NTZ: Final = "timestampNtz"

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "integer",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
    "string": "string",
    "binary": "binary",
    "uuid": "binary",
}
_NOT_ALLOWED: Final = frozenset(" ,;{}()\n\t=")
"""In names of columns that are not mapped."""


def unsayable(schema: Json) -> list[str]:
    """Why a table with these columns cannot be a Delta table; empty: it can."""
    return [*_unknown_types(schema, ""), *_same_names(schema)]


def _unknown_types(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, str):
        if _primitive(kind) is None:
            yield f"column {path} is of type {kind}, which Delta does not have"
        return
    match kind.get("type", "struct"):
        case "list":
            yield from _unknown_types(kind["element"], f"{path}.element")
        case "map":
            yield from _unknown_types(kind["key"], f"{path}.key")
            yield from _unknown_types(kind["value"], f"{path}.value")
        case _:
            for field in kind["fields"]:
                inner = f"{path}.{field['name']}" if path else field["name"]
                if field.get("initial-default") is not None:
                    yield f"column {inner} has a default for rows that are older than it, which Delta does not have"
                yield from _unknown_types(field["type"], inner)


def _same_names(schema: Json) -> Iterator[str]:
    seen: dict[tuple[int, str], str] = {}
    for above, field in fields_of(schema):
        name = field["name"]
        before = seen.setdefault((above, name.lower()), name)
        if before != name:
            yield f"columns {before} and {name} differ in case only, which is no difference to Delta"


def _primitive(kind: str) -> str | None:
    if kind.startswith("decimal("):
        return kind.replace(" ", "")
    return "binary" if kind.startswith("fixed[") else _PRIMITIVES.get(kind)


class DeltaSchema(msgspec.Struct, frozen=True):
    text: str
    """As JSON."""
    features: tuple[str, ...]
    """Of Delta that a reader must know, beyond the first version."""
    settings: dict[str, str]
    """Of the table."""


def delta_schema(schema: Json, names: Mapping[int, str], mapped: bool = False) -> DeltaSchema:
    """`names`: in the files, by field id. `mapped`: columns have been mapped before, so they stay so."""
    mapped = mapped or any(
        names[field["id"]] != field["name"] or _NOT_ALLOWED & set(field["name"]) for _, field in fields_of(schema)
    )
    features = [COLUMN_MAPPING] if mapped else []
    if any(field["type"] == "timestamp" for field in _all_types(schema)):
        features.append(TIMESTAMP_NTZ)
    settings = {}
    if mapped:
        highest = max((field["id"] for _, field in fields_of(schema)), default=0)
        settings = {MAPPING_MODE: "name", MAPPING_ID_MAX: str(highest)}
    text = msgspec.json.encode(_struct(schema, names, mapped)).decode()
    return DeltaSchema(text, tuple(features), settings)


def _all_types(schema: Json) -> Iterator[Json]:
    """Whatever has a type: fields, elements, keys, values."""

    def inside(kind: Any) -> Iterator[Json]:
        if not isinstance(kind, dict):
            yield {"type": kind}
        elif kind.get("type") == "list":
            yield from inside(kind["element"])
        elif kind.get("type") == "map":
            yield from inside(kind["key"])
            yield from inside(kind["value"])
        else:
            for field in kind["fields"]:
                yield from inside(field["type"])

    return inside(schema)


def _struct(kind: Json, names: Mapping[int, str], mapped: bool) -> Json:
    return {"type": "struct", "fields": [_field(field, names, mapped) for field in kind["fields"]]}


def _field(field: Json, names: Mapping[int, str], mapped: bool) -> Json:
    said: Json = {_OUR_ID: field["id"]}
    if mapped:
        said = {_MAPPED_ID: field["id"], _MAPPED_NAME: names[field["id"]]}
    if field.get("doc"):
        said["comment"] = field["doc"]
    return {"name": field["name"], "type": _type(field["type"], names, mapped), "nullable": True, "metadata": said}


def _type(kind: Any, names: Mapping[int, str], mapped: bool) -> Any:
    if isinstance(kind, str):
        return _primitive(kind)
    match kind["type"]:
        case "list":
            return {"type": "array", "elementType": _type(kind["element"], names, mapped), "containsNull": True}
        case "map":
            return {
                "type": "map",
                "keyType": _type(kind["key"], names, mapped),
                "valueType": _type(kind["value"], names, mapped),
                "valueContainsNull": True,
            }
        case _:
            return _struct(kind, names, mapped)


def names_said(text: str) -> dict[int, str]:
    """What a Delta schema of ours says that columns are called in files, by field id: files in the table have them
    under these names, so that is settled."""
    return dict(_said(msgspec.json.decode(text)))


def _said(kind: Any) -> Iterator[tuple[int, str]]:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        said = field.get("metadata") or {}
        number = said.get(_MAPPED_ID, said.get(_OUR_ID))
        if isinstance(number, int):
            yield number, said.get(_MAPPED_NAME, field["name"])
        yield from _said(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _said(kind.get(part))
