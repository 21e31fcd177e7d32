"""Names resolved by fastavro, then the tree of types, with what it does not look at: unions, defaults, what is defined
twice.

Before: `tidy.py`.  After: `schema.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from lakestream.errors import Rejected
from lakestream.schemas.avro.defaults import fits
from lakestream.schemas.avro.logical import logical_of
from lakestream.schemas.avro.tidy import PRIMITIVES, tidied
from lakestream.schemas.avro.types import (
    Array,
    AvroType,
    EnumOf,
    Fixed,
    Map,
    Named,
    Part,
    Plain,
    Record,
    Union,
    described,
    kind_of,
)
from lakestream.schemas.model import Reference, Source

_REFERENCES_MAX: Final = 1_000
_OWN: Final = {
    "record": {"type", "name", "namespace", "fields", "aliases", "doc"},
    "enum": {"type", "name", "namespace", "symbols", "default", "aliases"},
    "fixed": {"type", "name", "namespace", "size", "aliases"},
    "array": {"type", "items"},
    "map": {"type", "values"},
}
_OWN_OF_FIELDS: Final = {"name", "type", "aliases", "default", "doc"}


class Names:
    """What the schemas read so far have defined. One for each schema and what it refers to."""

    def __init__(self) -> None:
        self._parsed: dict[str, Any] = {}
        self._types: dict[str, Named] = {}

    @property
    def defined(self) -> frozenset[str]:
        return frozenset(self._types)

    def read(self, text: str) -> AvroType:
        """Rejected: what is wrong, and with which field."""
        raw = tidied(text)
        try:
            # Defaults are looked at below: fastavro does not take 1 as the default of a double, Java does.
            parsed = parse_schema(raw, self._parsed, _write_hint=False, _ignore_default_error=True)
        except UnknownType as error:
            raise Rejected(
                f"Avro schema: {_whereabouts(raw, error.name)}: no such type, here or in a reference"
            ) from error
        except SchemaParseException as error:
            raise Rejected(f"Avro schema: {error}") from error
        return self._type(parsed, "")

    def _type(self, raw: Any, path: str) -> AvroType:
        if isinstance(raw, str):
            return Plain(raw) if raw in PRIMITIVES else self._types[raw]
        if isinstance(raw, list):
            return self._union(raw, path)
        extra = {key: value for key, value in raw.items() if key not in _OWN.get(raw["type"], {"type"})}
        match raw["type"]:
            case "record":
                return self._record(raw, extra, path)
            case "enum":
                default = raw.get("default")
                return self._named(EnumOf(raw["name"], tuple(raw["symbols"]), default, _aliases(raw), extra), path)
            case "fixed":
                return self._named(Fixed(raw["name"], raw["size"], logical_of(raw), _aliases(raw), extra), path)
            case "array":
                return Array(self._type(raw["items"], f"{path}[]"), extra)
            case "map":
                return Map(self._type(raw["values"], f"{path}{{}}"), extra)
            case kind:
                return Plain(kind, logical_of(raw), extra)

    def _named(self, type_: Named, path: str) -> Named:
        if type_.name in self._types:
            _reject(path or type_.name, f"defines {type_.name}, which is defined already")
        self._types[type_.name] = type_
        return type_

    def _record(self, raw: Mapping[str, Any], extra: Mapping[str, Any], path: str) -> Record:
        record = Record(raw["name"], _aliases(raw), _text(raw.get("doc")), extra)
        self._named(record, path)
        record.fields = tuple(
            self._part(field, f"{path}.{field['name']}" if path else field["name"]) for field in raw["fields"]
        )
        # Only now: a default may be that of a record which holds this one.
        for part in record.fields:
            if part.default and not fits(part.default[0], part.type):
                _reject(
                    f"{path}.{part.name}" if path else part.name,
                    f"has a default that is no {described(part.type)}",
                )
        return record

    def _part(self, raw: Mapping[str, Any], path: str) -> Part:
        return Part(
            raw["name"],
            self._type(raw["type"], path),
            tuple(raw.get("aliases", ())),
            (raw["default"],) if "default" in raw else (),
            _text(raw.get("doc")),
            {key: value for key, value in raw.items() if key not in _OWN_OF_FIELDS},
        )

    def _union(self, raw: list[Any], path: str) -> Union:
        branches = tuple(self._type(branch, path) for branch in raw)
        seen = set[str]()
        for branch in branches:
            if isinstance(branch, Union):
                _reject(path, "is a union that holds another directly")
            name = branch.name if isinstance(branch, Named) else kind_of(branch)
            if name in seen:
                _reject(path, f"is a union that has {name} twice")
            seen.add(name)
        if not branches:
            _reject(path, "is a union of nothing")
        return Union(branches)


def read_all(source: Source) -> tuple[AvroType, frozenset[str]]:
    """The type, and the names that its references define. Rejected: see `Names.read`."""
    names, seen = Names(), dict[str, str]()
    for reference in _ordered(source.references):
        if seen.setdefault(reference.name, reference.text) != reference.text:
            raise Rejected(f"two references are called {reference.name}, and are not the same")
    for name, text in seen.items():
        try:
            names.read(text)
        except Rejected as error:
            raise Rejected(f"reference {name}: {error}") from error
    referred = names.defined
    return names.read(source.text), referred


def _ordered(references: tuple[Reference, ...]) -> Iterator[Reference]:
    """Each behind those that it needs. A tree of plain values has no circles, but may be deep or wide."""
    waiting = [(reference, False) for reference in reversed(references)]
    seen = 0
    while waiting:
        reference, is_ready = waiting.pop()
        if is_ready:
            yield reference
            continue
        seen += 1
        if seen > _REFERENCES_MAX:
            raise Rejected(f"the schema has more than {_REFERENCES_MAX} references")
        waiting.append((reference, True))
        waiting += [(below, False) for below in reversed(reference.references)]


def _aliases(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """With their namespaces: that of the type, where none is said."""
    space = raw["name"].rpartition(".")[0]
    return tuple(alias if "." in alias or not space else f"{space}.{alias}" for alias in raw.get("aliases", ()))


def _text(raw: Any) -> str:
    return raw if isinstance(raw, str) else ""


def _whereabouts(raw: Any, name: str) -> str:
    """The field whose type has a name that nobody has defined."""
    simple = name.rpartition(".")[2]
    for path, found in _mentions(raw, ""):
        if found in (name, simple):
            return f"field {path} is a {name}" if path else f"it is a {name}"
    return name


def _mentions(raw: Any, path: str) -> Iterator[tuple[str, str]]:
    match raw:
        case str():
            yield path, raw
        case list():
            for branch in raw:
                yield from _mentions(branch, path)
        case {"fields": list(fields)}:
            for field in fields:
                yield from _mentions(field["type"], f"{path}.{field['name']}" if path else field["name"])
        case {"items": items}:
            yield from _mentions(items, f"{path}[]")
        case {"values": values}:
            yield from _mentions(values, f"{path}{{}}")


def _reject(path: str, trouble: str) -> NoReturn:
    raise Rejected(f"Avro schema: {f'field {path}' if path else 'it'} {trouble}")
