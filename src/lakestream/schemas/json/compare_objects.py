"""Compares the keywords of two schemas for objects.

An object is *open* if it may have properties that its schema does not name, *closed* if it may not, and *partially
open* if these properties have a schema (`additionalProperties`, `patternProperties`, `unevaluatedProperties`).
"""

from typing import Any, Protocol

import re2  # type: ignore[import-untyped]

from lakestream.schemas.json.compare_scalars import bounds
from lakestream.schemas.json.incompatibilities import INCOMPATIBILITIES_MAX, Incompatibility, below
from lakestream.schemas.json.references import Subschema
from lakestream.schemas.json.schema_kind import AnySchema, ClassifiedSchema, SchemaKind, classify


class SchemaComparison(Protocol):
    def between(self, old_schema: AnySchema | None, new_schema: AnySchema | None) -> list[Incompatibility]: ...


def compare(comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    return [
        *_properties(comparison, old, new),
        *_dependencies(comparison, old, new),
        *_compare_rest_of(comparison, old, new, "additionalProperties", "ADDITIONAL_PROPERTIES"),
        *_compare_rest_of(comparison, old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES"),
        *bounds(old, new, "maxProperties", "minProperties"),
    ]


def _compare_rest_of(
    comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema, keyword: str, name: str
) -> list[Incompatibility]:
    return compare_rest(comparison, old.below(keyword), new.below(keyword), keyword, name)


def compare_rest(
    comparison: SchemaComparison, before: Subschema | None, after: Subschema | None, keyword: str, name: str
) -> list[Incompatibility]:
    """Compares the schemas of properties or items that are not named. No schema is the same as true; false allows
    none."""
    old_kind, new_kind = _kind(before), _kind(after)
    if new_kind is SchemaKind.ANYTHING or old_kind is SchemaKind.NOTHING:
        return []
    if new_kind is SchemaKind.NOTHING:
        return [Incompatibility(f"{name}_REMOVED", (keyword,))]
    if old_kind is SchemaKind.ANYTHING:
        return [Incompatibility(f"{name}_NARROWED", (keyword,))]
    return below(comparison.between(before, after), keyword)


def _kind(subschema: Subschema | None) -> SchemaKind:
    return SchemaKind.ANYTHING if subschema is None else classify(subschema).kind


def _properties(comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    before, after = old.named("properties"), new.named("properties")
    found: list[Incompatibility] = []
    for key in before | after:
        if len(found) >= INCOMPATIBILITIES_MAX:
            break
        if key not in after:
            one = _removed(comparison, before[key], new, key)
        elif key not in before:
            one = _added(comparison, old, new, key, after[key])
        else:
            one = comparison.between(before[key], after[key])
            if _requires(new, key) and not _requires(old, key) and not _has_default(after[key]):
                found.append(Incompatibility("REQUIRED_ATTRIBUTE_ADDED", ("required", key)))
        found += below(one, "properties", key)
    return found


def _removed(comparison: SchemaComparison, before: Subschema, new: ClassifiedSchema, key: str) -> list[Incompatibility]:
    if _is_open(new):
        return []
    rest = _of_unnamed(new, key)
    if rest is not None:
        found = comparison.between(before, rest)
        cover = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*found, Incompatibility(cover)] if found else []
    return (
        [] if _kind(before) is SchemaKind.NOTHING else [Incompatibility("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL")]
    )


def _added(
    comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema, key: str, after: Subschema
) -> list[Incompatibility]:
    is_required = _requires(new, key)
    if _is_open(old):
        if _kind(after) is SchemaKind.ANYTHING and not is_required:
            return []
        if not is_required:
            return [Incompatibility("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL")]
        default = "_WITH_DEFAULT" if _has_default(after) else ""
        return [Incompatibility(f"REQUIRED_PROPERTY{default}_ADDED_TO_OPEN_CONTENT_MODEL")]
    found = []
    rest = _of_unnamed(old, key)
    if rest is not None and (found := comparison.between(rest, after)):
        found += [*found, Incompatibility("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")]
    if is_required and not _has_default(after):
        found.append(Incompatibility("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"))
    return found


def _requires(schema: ClassifiedSchema, key: str) -> bool:
    required = schema.keyword("required")
    return isinstance(required, list) and key in required


def _has_default(subschema: Subschema) -> bool:
    if isinstance(subschema.contents, dict) and "default" in subschema.contents:
        return True
    return (
        subschema.ref is not None
        and isinstance(subschema.follow().contents, dict)
        and "default" in subschema.follow().contents
    )


def _is_open(schema: ClassifiedSchema) -> bool:
    if schema.named("patternProperties"):
        return False
    rest = schema.below("additionalProperties")
    if rest is not None:
        return classify(rest).kind is SchemaKind.ANYTHING
    return _kind(schema.below("unevaluatedProperties")) is SchemaKind.ANYTHING


def _of_unnamed(schema: ClassifiedSchema, key: str) -> Subschema | None:
    """Returns the schema of a property that the schema does not name, if there is one."""
    for pattern, subschema in schema.named("patternProperties").items():
        if _matches(pattern, key):
            return subschema
    rest = schema.below("additionalProperties")
    if rest is None:
        rest = schema.below("unevaluatedProperties")
    return rest if _kind(rest) not in (SchemaKind.ANYTHING, SchemaKind.NOTHING) else None


def _matches(pattern: str, key: str) -> bool:
    """Matches in time linear in the length of the key. A pattern that RE2 does not support matches nothing."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).search(key) is not None
    except re2.error:
        return False


def _dependencies(comparison: SchemaComparison, old: ClassifiedSchema, new: ClassifiedSchema) -> list[Incompatibility]:
    found = []
    old_dependencies = _merged(old, "dependencies", "dependentRequired", "dependentSchemas")
    for key, after in _merged(new, "dependencies", "dependentRequired", "dependentSchemas").items():
        path = ("dependencies", key)
        before = old_dependencies.get(key)
        if isinstance(after, list):
            if not isinstance(before, list):
                found.append(Incompatibility("DEPENDENCY_ARRAY_ADDED", path))
            elif not set(after) <= set(before):
                change = "EXTENDED" if set(before) <= set(after) else "CHANGED"
                found.append(Incompatibility(f"DEPENDENCY_ARRAY_{change}", path))
        elif not isinstance(before, dict | bool):
            found.append(Incompatibility("DEPENDENCY_SCHEMA_ADDED", path))
        else:
            found += below(comparison.between(old.subschema.below(before), new.subschema.below(after)), *path)
    return found


def _merged(schema: ClassifiedSchema, *keywords: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for keyword in keywords:
        if isinstance(values := schema.keyword(keyword), dict):
            merged |= values
    return merged
