"""Avro's schema resolution: why a reader cannot read what a writer wrote, with the field concerned.

The rules of the specification, as Java checks them. Stricter in one thing: decimals of another scale, which would be
read as other numbers.
"""

from typing import Final

from lakestream.schemas.avro.types import (
    Array,
    AvroType,
    EnumOf,
    Fixed,
    Logical,
    Map,
    Named,
    Plain,
    Record,
    Union,
    described,
    kind_of,
    simple_name,
)

_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
TROUBLES_MAX: Final = 100


def troubles(reader: AvroType, writer: AvroType) -> list[str]:
    return _Comparison().compare(reader, writer, "")[:TROUBLES_MAX]


class _Comparison:
    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[str]] = {}
        self._branches: dict[int, dict[str, list[AvroType]]] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        """Pairs of records are compared once: what is true of them does not depend on where they stand."""
        if not (isinstance(reader, Record) and isinstance(writer, Record)):
            return self._compare(reader, writer, path)
        pair = (id(reader), id(writer))
        if pair not in self._known:
            self._known[pair] = []  # a record inside itself is read if all the rest is
            self._known[pair] = self._records(reader, writer, path)
        return self._known[pair]

    def _compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        if isinstance(writer, Union):
            return [trouble for branch in writer.branches for trouble in self.compare(reader, branch, path)]
        if isinstance(reader, Union):
            return self._branch(reader, writer, path)
        match reader, writer:
            case Array(wanted), Array(given):
                return self.compare(wanted, given, f"{path}[]")
            case Map(wanted), Map(given):
                return self.compare(wanted, given, f"{path}{{}}")
            case Fixed(), Fixed():
                return _fixed(reader, writer, path)
            case EnumOf(), EnumOf():
                return _enums(reader, writer, path)
            case Plain(), Plain() if reader.kind == writer.kind or reader.kind in _PROMOTIONS.get(writer.kind, ()):
                return _scales(reader.logical, writer.logical, path)
        return [f"{_at(path)} was written as {described(writer)}, which cannot be read as {described(reader)}"]

    def _branch(self, reader: Union, writer: AvroType, path: str) -> list[str]:
        """A branch of the same kind and name says best what is wrong."""
        found = [(branch, self.compare(branch, writer, path)) for branch in self._likely(reader, writer)]
        if any(not trouble for _, trouble in found):
            return []
        for branch, trouble in found:
            if kind_of(branch) == kind_of(writer):
                return trouble
        return [f"{_at(path)} may be {described(writer)}, which no branch of the {described(reader)} reads"]

    def _likely(self, reader: Union, writer: AvroType) -> list[AvroType]:
        """The branches that may read it at all: of types with names only those of its name, in unions of thousands."""
        if id(reader) not in self._branches:
            named: dict[str, list[AvroType]] = {}
            for branch in reader.branches:
                for name in _names(branch):
                    named.setdefault(name, []).append(branch)
            self._branches[id(reader)] = named
        known = self._branches[id(reader)]
        if not isinstance(writer, Named):
            return known.get("", [])
        return [*known.get(simple_name(writer.name), []), *known.get(f"alias {writer.name}", [])]

    def _records(self, reader: Record, writer: Record, path: str) -> list[str]:
        if not _has_name(reader, writer):
            return [_misnamed(reader, writer, path)]
        found: list[str] = []
        written = {part.name: part for part in writer.fields}
        for part in reader.fields:
            below = f"{path}.{part.name}" if path else part.name
            # The field that was written, under this name or one that it had.
            before = next((written[name] for name in (part.name, *part.aliases) if name in written), None)
            if before is not None:
                found += self.compare(part.type, before.type, below)
            elif not part.default:
                found.append(f"{_at(below)} has no default, and was not written before")
        return found


def _names(branch: AvroType) -> list[str]:
    """By which a branch is found; empty: it has none."""
    if not isinstance(branch, Named):
        return [""]
    return [simple_name(branch.name), *(f"alias {name}" for name in branch.aliases)]


def _has_name(reader: AvroType, writer: AvroType) -> bool:
    """Namespaces do not count."""
    if not isinstance(reader, Named) or not isinstance(writer, Named):
        return True
    return simple_name(reader.name) == simple_name(writer.name) or writer.name in reader.aliases


def _misnamed(reader: Named, writer: Named, path: str) -> str:
    return f"{_at(path)} was written as {described(writer)}, and is called {reader.name} now, without an alias"


def _fixed(reader: Fixed, writer: Fixed, path: str) -> list[str]:
    if not _has_name(reader, writer):
        return [_misnamed(reader, writer, path)]
    if reader.size != writer.size:
        return [f"{_at(path)} was written as {writer.size} bytes, and has {reader.size} now"]
    return _scales(reader.logical, writer.logical, path)


def _enums(reader: EnumOf, writer: EnumOf, path: str) -> list[str]:
    if not _has_name(reader, writer):
        return [_misnamed(reader, writer, path)]
    symbols = frozenset(reader.symbols)
    lacking = [symbol for symbol in writer.symbols if symbol not in symbols]
    if not lacking or reader.default is not None:
        return []
    return [f"{_at(path)} may be {', '.join(lacking[:10])}, which enum {reader.name} does not have, nor a default"]


def _scales(reader: Logical | None, writer: Logical | None, path: str) -> list[str]:
    if reader is None or writer is None or not reader.name == writer.name == "decimal":
        return []
    if reader.scale == writer.scale:
        return []
    return [f"{_at(path)} was written with {writer.scale} decimal places, and would be read with {reader.scale}"]


def _at(path: str) -> str:
    return f"field {path}" if path else "the value"
