"""The text of a JSON Schema and of all that it names, as places that `$ref` can be followed from.

Before: `schema.py`, which has the text.  After: `sorts.py` and `columns.py`, which ask what stands at a place.

Nothing is ever fetched: a `$ref` leads within the schema, to one of its references, or to a meta-schema.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urljoin

import jsonschema  # type: ignore[import-untyped]
import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.schemas.model import Reference, Source

TEXT_SIZE_MAX: Final = MiB
"""Of a schema with all its references."""
DEPTH_MAX: Final = 100
REFERENCES_MAX: Final = 1000
FOLLOWED_MAX: Final = 100
"""A `$ref` that leads to a `$ref` that leads to …"""

_DIALECTS: Final = {
    "json-schema.org/draft-04/schema": jsonschema.Draft4Validator,
    "json-schema.org/draft-06/schema": jsonschema.Draft6Validator,
    "json-schema.org/draft-07/schema": jsonschema.Draft7Validator,
    "json-schema.org/draft/2019-09/schema": jsonschema.Draft201909Validator,
    "json-schema.org/draft/2020-12/schema": jsonschema.Draft202012Validator,
}
_FALLBACK: Final = jsonschema.Draft7Validator
"""Of a schema that does not say its dialect, or says one that nobody knows: what the registry's clients take it for."""
_OLD: Final = (jsonschema.Draft4Validator, jsonschema.Draft6Validator, jsonschema.Draft7Validator)
_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SILENT: Final = {*_REFS, "$schema", "$id", "$comment", "$defs", "definitions", "title", "description"}
"""What says nothing of values."""


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """A schema within a document."""

    contents: Any
    """A dict, or True or False."""
    document: "Document"
    resolver: Any

    def below(self, contents: Any) -> "Place":
        """A schema that stands in this one; with an id of its own, what it refers to is relative to that."""
        resolver = self.resolver
        if isinstance(contents, dict) and self.document.specification.id_of(contents) is not None:
            resolver = resolver.in_subresource(self.document.specification.create_resource(contents))
        return Place(contents, self.document, resolver)

    @property
    def ref(self) -> str | None:
        if isinstance(self.contents, dict):
            for word in _REFS:
                if isinstance(ref := self.contents.get(word), str):
                    return ref
        return None

    @property
    def is_only_ref(self) -> bool:
        """Words beside a `$ref` mean nothing until draft 7."""
        return self.document.is_old or not set(self.contents) - _SILENT

    def beside_ref(self) -> "Place":
        """What stands beside the `$ref`."""
        return self.document.beside(self)

    def follow(self) -> "Place":
        """Where its `$ref` leads. Rejected: nowhere."""
        return self.document.follow(self)


class Document:
    def __init__(self, source: Source) -> None:
        """Rejected: it is no JSON, no JSON Schema, too large, or a `$ref` leads nowhere."""
        references = list(_flattened(source.references))
        if len(source.text) + sum(len(reference.text) for reference in references) > TEXT_SIZE_MAX:
            raise Rejected(f"a JSON Schema with its references may have {TEXT_SIZE_MAX} characters, this one has more")
        contents = parsed(source.text, "the schema")
        dialect = _dialect_of(contents)
        self.is_old: Final = dialect in _OLD
        self.specification: Final = referencing.jsonschema.specification_with(dialect.ID_OF(dialect.META_SCHEMA))
        self._beside: dict[int, Place] = {}
        _check(dialect, contents, "")
        resource = self.specification.create_resource(contents)
        registry = _registry(resource.id() or "", references)
        self._names: Final = registry.resolver()
        self.root: Final = Place(contents, self, registry.resolver_with_root(resource))
        self._look_for_all()

    def follow(self, place: Place) -> Place:
        for _ in range(FOLLOWED_MAX):
            ref = place.ref
            if ref is None:
                return place
            place = self._found(place, ref)
            if place.ref is not None and not place.is_only_ref:
                return place
        raise Rejected(f"$ref '{ref}' leads only to itself")

    def beside(self, place: Place) -> Place:
        """Kept: places are told apart by the identity of their contents."""
        if id(place.contents) not in self._beside:
            rest = {word: value for word, value in place.contents.items() if word not in _REFS}
            self._beside[id(place.contents)] = Place(rest, self, place.resolver)
        return self._beside[id(place.contents)]

    def _found(self, place: Place, ref: str) -> Place:
        """A reference is found by its name also where an `$id` would lead elsewhere."""
        tries = [(place.resolver, ref), (self._names, ref)]
        if "#/$defs/" in ref:
            tries.append((place.resolver, ref.replace("#/$defs/", "#/definitions/")))
        for resolver, name in tries:
            try:
                found = resolver.lookup(name)
            except (referencing.exceptions.Unresolvable, ValueError):
                continue
            if not isinstance(found.contents, dict | bool):
                break
            return Place(found.contents, self, found.resolver)
        raise Rejected(f"$ref '{ref}' leads to no schema: it is neither in the schema nor one of its references")

    def _look_for_all(self) -> None:
        """Every `$ref` is followed once: what leads nowhere shows now, not when a value comes."""
        waiting, seen = [self.root], set()
        while waiting:
            place = waiting.pop()
            if id(place.contents) in seen:
                continue
            seen.add(id(place.contents))
            if place.ref is not None:
                waiting.append(place.follow())
            if isinstance(place.contents, dict):
                waiting.extend(place.below(part) for part in self.specification.subresources_of(place.contents))


def parsed(text: str, what: str) -> Any:
    """Rejected: no JSON, or one that is nested too deep to be walked."""
    try:
        contents = json.loads(text, parse_float=_finite, parse_constant=_no_number)
    except RecursionError:
        raise Rejected(f"{what} is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise Rejected(f"{what} is no JSON: {error}") from None
    if not isinstance(contents, dict | bool):
        raise Rejected(f"{what} is no JSON Schema: it has to be an object, or true or false")
    level: list[Any] = [contents]
    for _ in range(DEPTH_MAX):
        level = [part for one in level if isinstance(one, dict | list) for part in _parts(one)]
        if not level:
            return contents
    raise Rejected(f"{what} is nested deeper than {DEPTH_MAX} levels")


def _parts(one: dict[str, Any] | list[Any]) -> Iterator[Any]:
    return iter(one.values()) if isinstance(one, dict) else iter(one)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that fits a double")
    return number


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


def address_of_dialect(contents: Any) -> str:
    """Of the dialect that a schema is read in, whatever it says itself."""
    dialect = _dialect_of(contents)
    return str(dialect.ID_OF(dialect.META_SCHEMA))


def _dialect_of(contents: Any) -> Any:
    named = contents.get("$schema") if isinstance(contents, dict) else None
    if not isinstance(named, str):
        return _FALLBACK
    return _DIALECTS.get(named.partition("://")[2].rstrip("#"), _FALLBACK)


def _check(dialect: Any, contents: Any, what: str) -> None:
    """Against the dialect's own schema."""
    try:
        dialect.check_schema(contents)
    except jsonschema.SchemaError as error:
        where = "/".join(("#", *(str(part) for part in error.absolute_path)))
        raise Rejected(f"{what}no JSON Schema: at '{where}': {error.message[:200]}") from None
    except RecursionError:
        raise Rejected(f"{what}nested too deep") from None


def _flattened(references: tuple[Reference, ...]) -> Iterator[Reference]:
    """All that are needed, each once by name."""
    seen: set[str] = set()
    waiting = list(references)
    while waiting:
        reference = waiting.pop()
        if reference.name not in seen:
            seen.add(reference.name)
            if len(seen) > REFERENCES_MAX:
                raise Rejected(f"a schema may need {REFERENCES_MAX} others, this one needs more")
            yield reference
            waiting.extend(reference.references)


def _registry(base: str, references: list[Reference]) -> Any:
    """What a `$ref` may lead to: references by their names, as they are and relative to the schema's id."""
    resources = []
    for reference in references:
        contents = parsed(reference.text, f"reference '{reference.name}'")
        dialect = _dialect_of(contents)
        _check(dialect, contents, f"reference '{reference.name}': ")
        specification = referencing.jsonschema.specification_with(dialect.ID_OF(dialect.META_SCHEMA))
        resource = specification.create_resource(contents)
        names = {reference.name, urljoin(base, reference.name), resource.id() or reference.name}
        resources += [(name, resource) for name in sorted(names)]
    return REGISTRY.with_resources(resources)
