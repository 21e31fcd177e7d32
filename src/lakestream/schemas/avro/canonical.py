"""The one text of a schema: names in full, everything in one order, nothing that the registry would call a difference.

Not Avro's own parsing canonical form, which leaves out defaults, aliases and logical types: what this gives is stored
and shown instead of what was sent, so it has to mean the same in every way.
"""

import json
from collections.abc import Mapping
from typing import Any

from lakestream.schemas.avro.types import Array, AvroType, EnumOf, Fixed, Map, Named, Part, Plain, Record, Union


def canonical(type_: AvroType, referred: frozenset[str]) -> str:
    """`referred`: names that references define, which are only named here."""
    return json.dumps(_said(type_, set(referred)), separators=(",", ":"), ensure_ascii=False)


def _said(type_: AvroType, known: set[str]) -> Any:
    if isinstance(type_, Named):
        if type_.name in known:
            return type_.name
        known.add(type_.name)
    match type_:
        case Plain(kind, _, extra):
            return {"type": kind, **_ordered(extra)} if extra else kind
        case Union(branches):
            return [_said(branch, known) for branch in branches]
        case Array(items, extra):
            return {"type": "array", "items": _said(items, known), **_ordered(extra)}
        case Map(values, extra):
            return {"type": "map", "values": _said(values, known), **_ordered(extra)}
        case Fixed(name, size, _, aliases, extra):
            return {"name": name, "type": "fixed", "size": size, **_aliased(aliases), **_ordered(extra)}
        case EnumOf(name, symbols, default, aliases, extra):
            said = {"name": name, "type": "enum", "symbols": list(symbols), **_aliased(aliases)}
            return {**said, **({} if default is None else {"default": default}), **_ordered(extra)}
        case Record():
            fields = [_field(part, known) for part in type_.fields]
            return {
                "name": type_.name,
                "type": "record",
                "fields": fields,
                **_doc(type_.doc),
                **_aliased(type_.aliases),
                **_ordered(type_.extra),
            }


def _field(part: Part, known: set[str]) -> dict[str, Any]:
    default = {"default": part.default[0]} if part.default else {}
    extra = {key: value for key, value in part.extra.items() if (key, value) != ("order", "ascending")}
    said = {"name": part.name, "type": _said(part.type, known), **_doc(part.doc), **_aliased(part.aliases)}
    return {**said, **default, **_ordered(extra)}


def _doc(doc: str) -> dict[str, str]:
    return {"doc": doc} if doc else {}


def _aliased(aliases: tuple[str, ...]) -> dict[str, list[str]]:
    return {"aliases": sorted(set(aliases))} if aliases else {}


def _ordered(extra: Mapping[str, Any]) -> dict[str, Any]:
    """The logical type first, as people write it; the rest by name."""
    ranks = {"logicalType": 0, "precision": 1, "scale": 2}
    # A scale of 0 is the same as none.
    kept = {key: value for key, value in extra.items() if (key, value) != ("scale", 0)}
    return {key: kept[key] for key in sorted(kept, key=lambda key: (ranks.get(key, 3), key))}
