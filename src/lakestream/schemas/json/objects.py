"""What two schemas say of objects, compared.

An object is *open* if it may have properties that its schema does not name, *closed* if it may not, and *partially
open* if there is a schema for those (`additionalProperties`, `patternProperties`, `unevaluatedProperties`).
"""

from typing import Any, Protocol

import re2  # type: ignore[import-untyped]

from lakestream.schemas.json.changes import Trouble, below
from lakestream.schemas.json.documents import Place
from lakestream.schemas.json.scalars import bounds
from lakestream.schemas.json.sorts import Look, Sort, Sorted, sort_of


class Compares(Protocol):
    def between(self, old_look: Look | None, new_look: Look | None) -> list[Trouble]: ...


def troubles(comparison: Compares, old: Sorted, new: Sorted) -> list[Trouble]:
    return [
        *_properties(comparison, old, new),
        *_dependencies(comparison, old, new),
        *_of_the_rest(comparison, old, new, "additionalProperties", "ADDITIONAL_PROPERTIES"),
        *_of_the_rest(comparison, old, new, "unevaluatedProperties", "UNEVALUATED_PROPERTIES"),
        *bounds(old, new, "maxProperties", "minProperties"),
    ]


def _of_the_rest(comparison: Compares, old: Sorted, new: Sorted, word: str, name: str) -> list[Trouble]:
    return of_the_rest(comparison, old.below(word), new.below(word), word, name)


def of_the_rest(comparison: Compares, before: Place | None, after: Place | None, word: str, name: str) -> list[Trouble]:
    """What is said of properties or items that are not named: nothing and true are the same, false is none."""
    was, becomes = _sort(before), _sort(after)
    if becomes is Sort.ANYTHING or was is Sort.NOTHING:
        return []
    if becomes is Sort.NOTHING:
        return [Trouble(f"{name}_REMOVED", (word,))]
    if was is Sort.ANYTHING:
        return [Trouble(f"{name}_NARROWED", (word,))]
    return below(comparison.between(before, after), word)


def _sort(place: Place | None) -> Sort:
    return Sort.ANYTHING if place is None else sort_of(place).sort


def _properties(comparison: Compares, old: Sorted, new: Sorted) -> list[Trouble]:
    before, after = old.named("properties"), new.named("properties")
    found = []
    for key in before | after:
        if key not in after:
            one = _removed(comparison, before[key], new, key)
        elif key not in before:
            one = _added(comparison, old, new, key, after[key])
        else:
            one = comparison.between(before[key], after[key])
            if _requires(new, key) and not _requires(old, key) and not _has_default(after[key]):
                found.append(Trouble("REQUIRED_ATTRIBUTE_ADDED", ("required", key)))
        found += below(one, "properties", key)
    return found


def _removed(comparison: Compares, before: Place, new: Sorted, key: str) -> list[Trouble]:
    if _is_open(new):
        return []
    rest = _of_unnamed(new, key)
    if rest is not None:
        misfits = comparison.between(before, rest)
        cover = "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL"
        return [*misfits, Trouble(cover)] if misfits else []
    return [] if _sort(before) is Sort.NOTHING else [Trouble("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL")]


def _added(comparison: Compares, old: Sorted, new: Sorted, key: str, after: Place) -> list[Trouble]:
    needs = _requires(new, key)
    if _is_open(old):
        if _sort(after) is Sort.ANYTHING and not needs:
            return []
        if not needs:
            return [Trouble("OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL")]
        default = "_WITH_DEFAULT" if _has_default(after) else ""
        return [Trouble(f"REQUIRED_PROPERTY{default}_ADDED_TO_OPEN_CONTENT_MODEL")]
    found = []
    rest = _of_unnamed(old, key)
    if rest is not None and (misfits := comparison.between(rest, after)):
        found += [*misfits, Trouble("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL")]
    if needs and not _has_default(after):
        found.append(Trouble("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL"))
    return found


def _requires(schema: Sorted, key: str) -> bool:
    required = schema.word("required")
    return isinstance(required, list) and key in required


def _has_default(place: Place) -> bool:
    if isinstance(place.contents, dict) and "default" in place.contents:
        return True
    return place.ref is not None and isinstance(place.follow().contents, dict) and "default" in place.follow().contents


def _is_open(schema: Sorted) -> bool:
    if schema.named("patternProperties"):
        return False
    rest = schema.below("additionalProperties")
    if rest is not None:
        return sort_of(rest).sort is Sort.ANYTHING
    return _sort(schema.below("unevaluatedProperties")) is Sort.ANYTHING


def _of_unnamed(schema: Sorted, key: str) -> Place | None:
    """The schema of a property that is not named, where there is one."""
    for pattern, place in schema.named("patternProperties").items():
        if _matches(pattern, key):
            return place
    rest = schema.below("additionalProperties")
    if rest is None:
        rest = schema.below("unevaluatedProperties")
    return rest if _sort(rest) not in (Sort.ANYTHING, Sort.NOTHING) else None


def _matches(pattern: str, key: str) -> bool:
    """In time that grows with the key, whatever the pattern is. One that cannot be had so matches nothing."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options).search(key) is not None
    except re2.error:
        return False


def _dependencies(comparison: Compares, old: Sorted, new: Sorted) -> list[Trouble]:
    found = []
    before = _said_of(old, "dependencies", "dependentRequired", "dependentSchemas")
    for key, after in _said_of(new, "dependencies", "dependentRequired", "dependentSchemas").items():
        path = ("dependencies", key)
        was = before.get(key)
        if isinstance(after, list):
            if not isinstance(was, list):
                found.append(Trouble("DEPENDENCY_ARRAY_ADDED", path))
            elif not set(after) <= set(was):
                change = "EXTENDED" if set(was) <= set(after) else "CHANGED"
                found.append(Trouble(f"DEPENDENCY_ARRAY_{change}", path))
        elif not isinstance(was, dict | bool):
            found.append(Trouble("DEPENDENCY_SCHEMA_ADDED", path))
        else:
            found += below(comparison.between(old.place.below(was), new.place.below(after)), *path)
    return found


def _said_of(schema: Sorted, *words: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for word in words:
        if isinstance(one := schema.word(word), dict):
            said |= one
    return said
