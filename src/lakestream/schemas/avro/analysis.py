"""Properties of Avro types that do not depend on values.

A record may be used so often in a schema that a walk of the whole tree would not end in reasonable time. Therefore the
properties are computed bottom up, once for each record.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from lakestream.schemas.avro.types import Array, AvroType, Fixed, Map, Plain, Record, Union


@dataclass(frozen=True, slots=True)
class TypeProperties:
    """Properties of the records of a schema. Records are identified by their Python object id."""

    empty: frozenset[int]
    """Records whose values have no bytes."""
    constant: frozenset[int]
    """Records that can be written without any columns: they have only one value, or an empty value."""

    @classmethod
    def of(cls, type_: AvroType) -> "TypeProperties":
        records = list(_records(type_))
        return cls(_records_with(records, _is_empty), _records_with(records, _is_constant))

    def is_empty(self, type_: AvroType) -> bool:
        return _is_empty(type_, self.empty)

    def is_constant(self, type_: AvroType) -> bool:
        return _is_constant(type_, self.constant)


def _records_with(records: list[Record], has_property: Callable[[AvroType, Set[int]], bool]) -> frozenset[int]:
    """Returns the records whose fields all have a property. The property of a type may depend on those of records."""
    ids, is_changed = set[int](), True
    while is_changed:
        is_changed = False
        for record in reversed(records):
            if id(record) not in ids and all(has_property(field.type, ids) for field in record.fields):
                ids.add(id(record))
                is_changed = True
    return frozenset(ids)


def _records(top: AvroType) -> Iterator[Record]:
    """Yields all records inside a type, each once and outer records first."""
    waiting, seen = [top], set[int]()
    while waiting:
        match type_ := waiting.pop():
            case Array(inner) | Map(inner):
                waiting.append(inner)
            case Union(branches):
                waiting += branches
            case Record() if id(type_) not in seen:
                seen.add(id(type_))
                yield type_
                waiting += [field.type for field in type_.fields]


def _is_empty(type_: AvroType, empty: Set[int]) -> bool:
    match type_:
        case Plain("null") | Fixed(size=0):
            return True
        case Record():
            return id(type_) in empty
        case _:
            return False


def _is_constant(type_: AvroType, constant: Set[int]) -> bool:
    match type_:
        case Plain("null") | Fixed(size=0) | Array() | Map():
            return True
        case Union(branches):
            return any(_is_constant(branch, constant) for branch in branches)
        case Record():
            return id(type_) in constant
        case _:
            return False
