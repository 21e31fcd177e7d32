"""Converts a table's schema to Delta's. Pure, except `check_delta`.

While all columns have the same names in the table and in its files, every reader of Delta can read the table. If a name
differs (a column was renamed, or has the name of a dropped one), or Delta does not allow it, column mapping is enabled:
then the schema has the name in files of each column. The mode is `name`, not `id`: DuckDB and delta-rs use the name in
either mode.

All columns are nullable. Writers of the table ensure that required columns are not null, and Delta needs one feature
less.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.topic_table.field_names import fields_of
from lakestream.errors import Corrupt, Misconfigured

MAPPING_MODE: Final = "delta.columnMapping.mode"
MAPPING_ID_MAX: Final = "delta.columnMapping.maxColumnId"
_MAPPED_ID: Final = "delta.columnMapping.id"
_MAPPED_NAME: Final = "delta.columnMapping.physicalName"
_OUR_ID: Final = "lakestream.id"
"""Iceberg's field id without column mapping, by which a renamed column is found."""
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
"""In column names without column mapping."""


def unsupported_columns(schema: Json) -> list[str]:
    """Returns why a table with these columns cannot be a Delta table; empty if it can."""
    return [*_unknown_types(schema, ""), *_same_names(schema)]


def _unknown_types(kind: Any, path: str) -> Iterator[str]:
    if isinstance(kind, str):
        if _primitive(kind) is None:
            yield f"column {path} has the type {kind}, which Delta does not support"
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
                    yield f"column {inner} has an initial default, which Delta does not support"
                yield from _unknown_types(field["type"], inner)


def _same_names(schema: Json) -> Iterator[str]:
    seen: dict[tuple[int, str], str] = {}
    for above, field in fields_of(schema):
        name = field["name"]
        before = seen.setdefault((above, name.lower()), name)
        if before != name:
            yield f"columns {before} and {name} differ only in case, which Delta does not support"


def _primitive(kind: str) -> str | None:
    if kind.startswith("decimal("):
        return kind.replace(" ", "")
    return "binary" if kind.startswith("fixed[") else _PRIMITIVES.get(kind)


class DeltaSchema(msgspec.Struct, frozen=True):
    text: str
    """In JSON."""
    features: tuple[str, ...]
    """Table features that a reader must support, beyond the first protocol version."""
    settings: dict[str, str]
    """Table properties."""


def delta_schema(schema: Json, names: Mapping[int, str], mapped: bool = False) -> DeltaSchema:
    """Converts a schema. `names`: in files, by field id. `mapped`: column mapping is enabled already, and stays."""
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
    """Yields the types of all fields, elements, keys and values."""

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
    metadata: Json = {_OUR_ID: field["id"]}
    if mapped:
        metadata = {_MAPPED_ID: field["id"], _MAPPED_NAME: names[field["id"]]}
    if field.get("doc"):
        metadata["comment"] = field["doc"]
    return {"name": field["name"], "type": _type(field["type"], names, mapped), "nullable": True, "metadata": metadata}


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


def physical_names(text: str) -> dict[int, str]:
    """Returns the names in files of a table's Delta schema, by field id. Existing files have them.

    Corrupt: another engine wrote a schema that is not valid.
    """
    try:
        return dict(_physical_names(msgspec.json.decode(text)))
    except (msgspec.MsgspecError, AttributeError, KeyError, RecursionError, TypeError) as error:
        raise Corrupt(f"the schema in the Delta log is not valid ({error!r:.100})") from error


def _physical_names(kind: Any) -> Iterator[tuple[int, str]]:
    if not isinstance(kind, dict):
        return
    for field in kind.get("fields", ()):
        metadata = field.get("metadata") or {}
        number = metadata.get(_MAPPED_ID, metadata.get(_OUR_ID))
        if isinstance(number, int):
            yield number, metadata.get(_MAPPED_NAME, field["name"])
        yield from _physical_names(field["type"])
    for part in ("elementType", "keyType", "valueType"):
        yield from _physical_names(kind.get(part))


async def check_delta(catalog: Catalog, topic_id: str) -> None:
    """Raises Misconfigured if the topic's table has columns that Delta does not support.

    Called when the setting is changed, to reject it immediately. A topic may have no table yet.
    """
    try:
        metadata = (await catalog.load_id(topic_id)).file.without_snapshots()
    except NoSuchTable:
        return
    if reasons := unsupported_columns(schema_of(metadata)):
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise Misconfigured(f"topic setting lakestream.table.formats cannot have delta: {reasons[0]}{more}")
