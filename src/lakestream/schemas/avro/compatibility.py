"""Avro's schema resolution: the reasons, with fields, why a reader's schema cannot read values of a writer's schema.

The rules are those of the specification, as Java checks them. In one respect they are stricter: decimals of different
scales are incompatible, because they would be read as different numbers.

Records may be recursive. A pair of records whose comparison is in progress is assumed to be compatible. If a pair was
assumed compatible and incompatible pairs were found, the comparison is repeated, starting with the incompatible pairs
found so far, until no pair is added.
"""

from typing import Final, TypeAlias

from lakestream.errors import Rejected
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
    describe,
    kind_of,
    simple_name,
)
from lakestream.schemas.field_path import below

_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
INCOMPATIBILITIES_MAX: Final = 100
"""Of one pair of records. A record that is used twice counts twice, so lists of nested records would grow
exponentially."""
PAIRS_MAX: Final = 50_000

_Pair: TypeAlias = tuple[int, int]


def find_incompatibilities(reader: AvroType, writer: AvroType) -> list[str]:
    """Returns the incompatibilities, each with its field. Rejected if the schemas are too large to compare."""
    incompatible: dict[_Pair, list[str]] = {}
    try:
        while True:
            comparison = _Comparison(incompatible)
            found = comparison.compare(reader, writer, "")
            added = {pair: why for pair, why in comparison.done.items() if why and pair not in incompatible}
            if not comparison.has_assumed or not added:
                return found[:INCOMPATIBILITIES_MAX]
            incompatible |= added
    except RecursionError:
        raise Rejected("the records of the schemas are nested too deeply to be compared") from None


class _Comparison:
    def __init__(self, incompatible: dict[_Pair, list[str]]) -> None:
        """`incompatible`: pairs of records that are known to be incompatible, with the reasons."""
        self.done: dict[_Pair, list[str]] = {}
        self.has_assumed = False
        """Whether a pair was assumed compatible while its comparison was in progress."""
        self._incompatible = incompatible
        self._under_way: set[_Pair] = set()
        self._branches: dict[int, dict[str, list[AvroType]]] = {}

    def compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        """Compares two types. Each pair of records is compared once: the result does not depend on where they are
        used."""
        if not (isinstance(reader, Record) and isinstance(writer, Record)):
            return self._compare(reader, writer, path)
        pair = (id(reader), id(writer))
        if (known := self.done.get(pair)) is not None:
            return known
        if pair in self._under_way:
            self.has_assumed = True
            return self._incompatible.get(pair, [])
        if len(self.done) + len(self._under_way) >= PAIRS_MAX:
            raise Rejected(f"comparing the schemas takes more than {PAIRS_MAX} pairs of records: make them smaller")
        self._under_way.add(pair)
        found = self._records(reader, writer, path)
        self._under_way.discard(pair)
        self.done[pair] = found
        return found

    def _compare(self, reader: AvroType, writer: AvroType, path: str) -> list[str]:
        if isinstance(writer, Union):
            return self._each_branch(reader, writer, path)
        if isinstance(reader, Union):
            return self._branch(reader, writer, path)
        match reader, writer:
            case Array(reader_items), Array(writer_items):
                return self.compare(reader_items, writer_items, f"{path}[]")
            case Map(reader_values), Map(writer_values):
                return self.compare(reader_values, writer_values, f"{path}{{}}")
            case Fixed(), Fixed():
                return _fixed(reader, writer, path)
            case EnumOf(), EnumOf():
                return _enums(reader, writer, path)
            case Plain(), Plain() if reader.kind == writer.kind or reader.kind in _PROMOTIONS.get(writer.kind, ()):
                return _scales(reader.logical, writer.logical, path)
        return [f"{_at(path)} was written as {describe(writer)}, which cannot be read as {describe(reader)}"]

    def _each_branch(self, reader: AvroType, writer: Union, path: str) -> list[str]:
        found: list[str] = []
        for branch in writer.branches:
            found += self.compare(reader, branch, path)
            if len(found) >= INCOMPATIBILITIES_MAX:
                break
        return found[:INCOMPATIBILITIES_MAX]

    def _branch(self, reader: Union, writer: AvroType, path: str) -> list[str]:
        """Compares a type with the branches of the reader's union. The reasons of a branch with the same kind and name
        are the most helpful."""
        found = [(branch, self.compare(branch, writer, path)) for branch in self._candidates(reader, writer)]
        if any(not reasons for _, reasons in found):
            return []
        for branch, reasons in found:
            if kind_of(branch) == kind_of(writer):
                return reasons
        return [f"{_at(path)} may be {describe(writer)}, which no branch of the {describe(reader)} reads"]

    def _candidates(self, reader: Union, writer: AvroType) -> list[AvroType]:
        """Returns the branches that may read a type: of the named types only those with its name, because a union may
        have thousands of them."""
        if id(reader) not in self._branches:
            named: dict[str, list[AvroType]] = {}
            for branch in reader.branches:
                for name in _names(branch):
                    named.setdefault(name, []).append(branch)
            self._branches[id(reader)] = named
        by_name = self._branches[id(reader)]
        if not isinstance(writer, Named):
            return by_name.get("", [])
        return [*by_name.get(simple_name(writer.name), []), *by_name.get(f"alias {writer.name}", [])]

    def _records(self, reader: Record, writer: Record, path: str) -> list[str]:
        if not _has_name(reader, writer):
            return [_name_mismatch(reader, writer, path)]
        found: list[str] = []
        writer_fields = {field.name: field for field in writer.fields}
        for field in reader.fields:
            if len(found) >= INCOMPATIBILITIES_MAX:
                break
            here = below(path, field.name)
            # Matched by the name or an alias of the reader's field.
            names = (field.name, *field.aliases)
            written = next((writer_fields[name] for name in names if name in writer_fields), None)
            if written is not None:
                found += self.compare(field.type, written.type, here)
            elif not field.default:
                found.append(f"{_at(here)} is new and has no default")
        return found[:INCOMPATIBILITIES_MAX]


def _names(branch: AvroType) -> list[str]:
    """Returns the names by which a branch is found; the empty name for types without a name."""
    if not isinstance(branch, Named):
        return [""]
    return [simple_name(branch.name), *(f"alias {name}" for name in branch.aliases)]


def _has_name(reader: AvroType, writer: AvroType) -> bool:
    """Compares names without their namespaces."""
    if not isinstance(reader, Named) or not isinstance(writer, Named):
        return True
    return simple_name(reader.name) == simple_name(writer.name) or writer.name in reader.aliases


def _name_mismatch(reader: Named, writer: Named, path: str) -> str:
    return f"{_at(path)} was written as {describe(writer)}, and was renamed to {reader.name} without an alias"


def _fixed(reader: Fixed, writer: Fixed, path: str) -> list[str]:
    if not _has_name(reader, writer):
        return [_name_mismatch(reader, writer, path)]
    if reader.size != writer.size:
        return [f"{_at(path)} was written with {writer.size} bytes, and now has {reader.size}"]
    return _scales(reader.logical, writer.logical, path)


def _enums(reader: EnumOf, writer: EnumOf, path: str) -> list[str]:
    if not _has_name(reader, writer):
        return [_name_mismatch(reader, writer, path)]
    symbols = frozenset(reader.symbols)
    missing = [symbol for symbol in writer.symbols if symbol not in symbols]
    if not missing or reader.default is not None:
        return []
    return [f"{_at(path)} may be {', '.join(missing[:10])}, which enum {reader.name} does not have; it has no default"]


def _scales(reader: Logical | None, writer: Logical | None, path: str) -> list[str]:
    if reader is None or writer is None or not reader.name == writer.name == "decimal":
        return []
    if reader.scale == writer.scale:
        return []
    return [f"{_at(path)} was written with {writer.scale} decimal places, and would be read with {reader.scale}"]


def _at(path: str) -> str:
    return f"field {path}" if path else "the value"
