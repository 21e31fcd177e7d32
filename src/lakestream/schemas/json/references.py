"""Parses a JSON Schema and its references, and resolves `$ref`.

Before: `schema.py`, which has the text.  After: `schema_kind.py` and `to_types.py`, which read subschemas.

Nothing is ever fetched: a `$ref` resolves within the schema, to one of its references, or to a meta-schema.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urljoin

import jsonschema_rs
import referencing
import referencing.exceptions
import referencing.jsonschema
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]

from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.schemas.model import Reference, Source

TEXT_SIZE_MAX: Final = MiB
"""Characters of a schema with all its references."""
DEPTH_MAX: Final = 100
REFERENCES_MAX: Final = 1000
FOLLOWED_MAX: Final = 100
"""Maximum length of a chain of `$ref`."""

_OLD_DIALECTS: Final = {
    f"json-schema.org/draft-0{n}/schema": f"http://json-schema.org/draft-0{n}/schema#" for n in (4, 6, 7)
}
_DIALECTS: Final = _OLD_DIALECTS | {
    "json-schema.org/draft/2019-09/schema": "https://json-schema.org/draft/2019-09/schema",
    "json-schema.org/draft/2020-12/schema": "https://json-schema.org/draft/2020-12/schema",
}
"""URIs of the meta-schemas, by name without scheme and fragment."""
_FALLBACK: Final = "http://json-schema.org/draft-07/schema#"
"""For a schema without a dialect, or of an unknown one: the default of the registry's clients."""
_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SILENT: Final = {*_REFS, "$schema", "$id", "$comment", "$defs", "definitions", "title", "description"}
"""Keywords that do not restrict values."""


@dataclass(frozen=True, slots=True, eq=False)
class Subschema:
    """A schema within a document."""

    contents: Any
    """A dict, True or False."""
    document: "Document"
    resolver: Any

    def below(self, contents: Any) -> "Subschema":
        """Returns a schema inside this one. If it has its own `$id`, its references are relative to that."""
        resolver = self.resolver
        if isinstance(contents, dict) and self.document.specification.id_of(contents) is not None:
            resolver = resolver.in_subresource(self.document.specification.create_resource(contents))
        return Subschema(contents, self.document, resolver)

    @property
    def ref(self) -> str | None:
        if isinstance(self.contents, dict):
            for keyword in _REFS:
                if isinstance(ref := self.contents.get(keyword), str):
                    return ref
        return None

    @property
    def is_only_ref(self) -> bool:
        """Whether `$ref` is the only keyword with effect. Up to draft 7, other keywords next to `$ref` are ignored."""
        return self.document.is_old or not set(self.contents) - _SILENT

    def without_ref(self) -> "Subschema":
        """Returns the schema of the keywords next to the `$ref`."""
        return self.document.without_ref(self)

    def follow(self) -> "Subschema":
        """Resolves the `$ref`. Rejected if that is not possible."""
        return self.document.follow(self)


class Document:
    def __init__(self, source: Source) -> None:
        """Rejected if the source is not JSON, not a JSON Schema, or too large, or if a `$ref` cannot be resolved."""
        references = list(_flattened(source.references))
        if len(source.text) + sum(len(reference.text) for reference in references) > TEXT_SIZE_MAX:
            raise Rejected(f"the JSON Schema and its references have more than {TEXT_SIZE_MAX} characters")
        contents = parse_json(source.text, "the schema")
        dialect = dialect_uri(contents)
        self.is_old: Final = dialect in _OLD_DIALECTS.values()
        self.specification: Final = referencing.jsonschema.specification_with(dialect)
        self._without_ref: dict[int, Subschema] = {}
        _check(dialect, contents, "")
        resource = self.specification.create_resource(contents)
        base = resource.id() or ""
        # Crawled once: otherwise the registry is searched from the start for every `$anchor`.
        registry = _registry(base, references).crawl()
        self._names: Final = registry.resolver()
        self.root: Final = Subschema(contents, self, registry.with_resource(base, resource).crawl().resolver(base))
        self._check_references()

    def follow(self, subschema: Subschema) -> Subschema:
        for _ in range(FOLLOWED_MAX):
            ref = subschema.ref
            if ref is None:
                return subschema
            subschema = self._resolve(subschema, ref)
            if subschema.ref is not None and not subschema.is_only_ref:
                return subschema
        raise Rejected(f"$ref '{ref}' resolves only to itself")

    def without_ref(self, subschema: Subschema) -> Subschema:
        """Returns the same object for the same contents, because subschemas are compared by the `id` of them."""
        if id(subschema.contents) not in self._without_ref:
            rest = {keyword: value for keyword, value in subschema.contents.items() if keyword not in _REFS}
            self._without_ref[id(subschema.contents)] = Subschema(rest, self, subschema.resolver)
        return self._without_ref[id(subschema.contents)]

    def _resolve(self, subschema: Subschema, ref: str) -> Subschema:
        """Resolves a `$ref`. The name of a reference is accepted even if it is not relative to the `$id`."""
        tries = [(subschema.resolver, ref), (self._names, ref)]
        if "#/$defs/" in ref:
            tries.append((subschema.resolver, ref.replace("#/$defs/", "#/definitions/")))
        for resolver, name in tries:
            try:
                resolved = resolver.lookup(name)
            except (referencing.exceptions.Unresolvable, ValueError):
                continue
            if not isinstance(resolved.contents, dict | bool):
                break
            return Subschema(resolved.contents, self, resolved.resolver)
        raise Rejected(f"$ref '{ref}' cannot be resolved: define it in the schema or in one of its references")

    def _check_references(self) -> None:
        """Resolves every `$ref` once, so that errors occur at registration and not when a value is read."""
        waiting, seen = [self.root], set()
        while waiting:
            subschema = waiting.pop()
            if id(subschema.contents) in seen:
                continue
            seen.add(id(subschema.contents))
            if subschema.ref is not None:
                waiting.append(subschema.follow())
            if isinstance(subschema.contents, dict):
                waiting.extend(subschema.below(part) for part in self.specification.subresources_of(subschema.contents))


def parse_json(text: str, what: str) -> Any:
    """Parses the JSON of a schema; `what` is its name in messages. Rejected if it is invalid or nested too deeply."""
    try:
        contents = json.loads(text, parse_float=_finite, parse_constant=_reject_constant)
    except RecursionError:
        raise Rejected(f"{what} is nested deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise Rejected(f"{what} is not valid JSON: {error}") from None
    if not isinstance(contents, dict | bool):
        raise Rejected(f"{what} is not a JSON Schema: it must be an object, true or false")
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
        raise ValueError(f"{text} exceeds the range of a double")
    return number


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON value")


def dialect_uri(contents: Any) -> str:
    """Returns the URI of the dialect that is used for a schema; it may differ from its `$schema`."""
    named = contents.get("$schema") if isinstance(contents, dict) else None
    if not isinstance(named, str):
        return _FALLBACK
    return _DIALECTS.get(named.partition("://")[2].rstrip("#"), _FALLBACK)


def _check(dialect: str, contents: Any, what: str) -> None:
    """Validates a schema against the meta-schema, in linear time."""
    try:
        _meta_validator(dialect).validate(contents)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(("#", *(str(part) for part in error.instance_path)))
        raise Rejected(f"{what}not a valid JSON Schema: at '{where}': {error.message[:200]}") from None
    except ValueError:
        raise Rejected(f"{what}a string contains an unpaired surrogate") from None
    except RecursionError:
        raise Rejected(f"{what}nested too deeply") from None


@cache
def _meta_validator(dialect: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(REGISTRY.contents(dialect), validate_formats=False)


def _flattened(references: tuple[Reference, ...]) -> Iterator[Reference]:
    """Yields all references, including those of references, each name once."""
    seen: set[str] = set()
    waiting = list(references)
    while waiting:
        reference = waiting.pop()
        if reference.name not in seen:
            seen.add(reference.name)
            if len(seen) > REFERENCES_MAX:
                raise Rejected(f"the schema has more than {REFERENCES_MAX} references")
            yield reference
            waiting.extend(reference.references)


def _registry(base: str, references: list[Reference]) -> Any:
    """Returns the registry for `$ref`: references by their names, unchanged and relative to the `$id` of the schema."""
    resources = []
    for reference in references:
        contents = parse_json(reference.text, f"reference '{reference.name}'")
        dialect = dialect_uri(contents)
        _check(dialect, contents, f"reference '{reference.name}': ")
        resource = referencing.jsonschema.specification_with(dialect).create_resource(contents)
        names = {reference.name, urljoin(base, reference.name), resource.id() or reference.name}
        resources += [(name, resource) for name in sorted(names)]
    return REGISTRY.with_resources(resources)
