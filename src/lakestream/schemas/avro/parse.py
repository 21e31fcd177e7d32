"""Parses a validated schema to a tree of types.

fastavro resolves the names. This module checks what fastavro does not: unions, defaults and duplicate definitions.

Before: `validate.py`.  After: `schema.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

from lakestream.errors import Rejected
from lakestream.schemas.avro.defaults import fits
from lakestream.schemas.avro.logical_types import logical_of
from lakestream.schemas.avro.types import (
    Array,
    AvroType,
    EnumOf,
    Fixed,
    Map,
    Named,
    Plain,
    Record,
    RecordField,
    Union,
    describe,
    kind_of,
)
from lakestream.schemas.avro.validate import PRIMITIVES, validated_text
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


class DefinedNames:
    """The named types defined by a schema and its references."""

    def __init__(self) -> None:
        self._parsed: dict[str, Any] = {}
        self._types: dict[str, Named] = {}

    @property
    def defined(self) -> frozenset[str]:
        return frozenset(self._types)

    def parse(self, text: str) -> AvroType:
        """Parses a schema. Rejected, with the problem and its field, if it is invalid."""
        raw = validated_text(text)
        try:
            # Defaults are checked below: fastavro rejects 1 as the default of a double, Java accepts it.
            parsed = parse_schema(raw, self._parsed, _write_hint=False, _ignore_default_error=True)
        except UnknownType as error:
            raise Rejected(
                f"Avro schema: {_locate(raw, error.name)}: the type is not defined in the schema or in a reference"
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
            _reject(path or type_.name, f"defines {type_.name}, which is already defined")
        self._types[type_.name] = type_
        return type_

    def _record(self, raw: Mapping[str, Any], extra: Mapping[str, Any], path: str) -> Record:
        record = Record(raw["name"], _aliases(raw), _text(raw.get("doc")), extra)
        self._named(record, path)
        record.fields = tuple(
            self._field(field, f"{path}.{field['name']}" if path else field["name"]) for field in raw["fields"]
        )
        # Checked after all fields are parsed: a default may be a record that contains this one.
        for field in record.fields:
            if field.default and not fits(field.default[0], field.type):
                _reject(
                    f"{path}.{field.name}" if path else field.name,
                    f"has a default that is not a valid {describe(field.type)}",
                )
        return record

    def _field(self, raw: Mapping[str, Any], path: str) -> RecordField:
        return RecordField(
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
                _reject(path, "is a union that directly contains another union")
            name = branch.name if isinstance(branch, Named) else kind_of(branch)
            if name in seen:
                _reject(path, f"is a union that has {name} twice")
            seen.add(name)
        if not branches:
            _reject(path, "is a union without branches")
        return Union(branches)


def parse_with_references(source: Source) -> tuple[AvroType, frozenset[str]]:
    """Returns the type, and the names that its references define. Rejected as in `DefinedNames.parse`."""
    names, seen = DefinedNames(), dict[str, str]()
    for reference in _ordered(source.references):
        if seen.setdefault(reference.name, reference.text) != reference.text:
            raise Rejected(f"two references have the name {reference.name}, but different schemas")
    for name, text in seen.items():
        try:
            names.parse(text)
        except Rejected as error:
            raise Rejected(f"reference {name}: {error}") from error
    referred = names.defined
    return names.parse(source.text), referred


def _ordered(references: tuple[Reference, ...]) -> Iterator[Reference]:
    """Yields each reference after its own references. The tree has no cycles, but may be deep or wide."""
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
    """Returns the aliases with namespaces. An alias without one has the namespace of the type."""
    space = raw["name"].rpartition(".")[0]
    return tuple(alias if "." in alias or not space else f"{space}.{alias}" for alias in raw.get("aliases", ()))


def _text(raw: Any) -> str:
    return raw if isinstance(raw, str) else ""


def _locate(raw: Any, name: str) -> str:
    """Returns the first field whose type is the undefined name."""
    simple = name.rpartition(".")[2]
    for path, used in _used_names(raw, ""):
        if used in (name, simple):
            return f"field {path} has the type {name}" if path else f"the schema has the type {name}"
    return name


def _used_names(raw: Any, path: str) -> Iterator[tuple[str, str]]:
    match raw:
        case str():
            yield path, raw
        case list():
            for branch in raw:
                yield from _used_names(branch, path)
        case {"fields": list(fields)}:
            for field in fields:
                yield from _used_names(field["type"], f"{path}.{field['name']}" if path else field["name"])
        case {"items": items}:
            yield from _used_names(items, f"{path}[]")
        case {"values": values}:
            yield from _used_names(values, f"{path}{{}}")


def _reject(path: str, problem: str) -> NoReturn:
    raise Rejected(f"Avro schema: {f'field {path}' if path else 'it'} {problem}")
