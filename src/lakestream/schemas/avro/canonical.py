"""The normalized text of a schema: full names and a fixed order of attributes.

This is not Avro's parsing canonical form, which omits defaults, aliases and logical types. The normalized text is
stored and returned instead of the text that the client sent, so it must have the same meaning in every respect.
"""

import json
from collections.abc import Mapping
from typing import Any

from lakestream.schemas.avro.types import Array, AvroType, EnumOf, Fixed, Map, Named, Plain, Record, RecordField, Union


def canonical(type_: AvroType, referred: frozenset[str]) -> str:
    """Returns the normalized text. `referred` are the names defined by references, whose definitions are omitted."""
    return json.dumps(_json(type_, set(referred)), separators=(",", ":"), ensure_ascii=False)


def _json(type_: AvroType, defined: set[str]) -> Any:
    if isinstance(type_, Named):
        if type_.name in defined:
            return type_.name
        defined.add(type_.name)
    match type_:
        case Plain(kind, _, extra):
            return {"type": kind, **_ordered(extra)} if extra else kind
        case Union(branches):
            return [_json(branch, defined) for branch in branches]
        case Array(items, extra):
            return {"type": "array", "items": _json(items, defined), **_ordered(extra)}
        case Map(values, extra):
            return {"type": "map", "values": _json(values, defined), **_ordered(extra)}
        case Fixed(name, size, _, aliases, extra):
            return {"name": name, "type": "fixed", "size": size, **_aliased(aliases), **_ordered(extra)}
        case EnumOf(name, symbols, default, aliases, extra):
            enum = {"name": name, "type": "enum", "symbols": list(symbols), **_aliased(aliases)}
            return {**enum, **({} if default is None else {"default": default}), **_ordered(extra)}
        case Record():
            fields = [_field(field, defined) for field in type_.fields]
            return {
                "name": type_.name,
                "type": "record",
                "fields": fields,
                **_doc(type_.doc),
                **_aliased(type_.aliases),
                **_ordered(type_.extra),
            }


def _field(field: RecordField, defined: set[str]) -> dict[str, Any]:
    default = {"default": field.default[0]} if field.default else {}
    extra = {key: value for key, value in field.extra.items() if (key, value) != ("order", "ascending")}
    start = {"name": field.name, "type": _json(field.type, defined), **_doc(field.doc), **_aliased(field.aliases)}
    return {**start, **default, **_ordered(extra)}


def _doc(doc: str) -> dict[str, str]:
    return {"doc": doc} if doc else {}


def _aliased(aliases: tuple[str, ...]) -> dict[str, list[str]]:
    return {"aliases": sorted(set(aliases))} if aliases else {}


def _ordered(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Orders attributes: those of the logical type first, as usual in Avro schemas, the rest by name."""
    ranks = {"logicalType": 0, "precision": 1, "scale": 2}
    # A scale of 0 is the default.
    kept = {key: value for key, value in extra.items() if (key, value) != ("scale", 0)}
    return {key: kept[key] for key in sorted(kept, key=lambda key: (ranks.get(key, 3), key))}
