"""What can be said of types without looking at values. A schema may name a record so often that no walk of the tree
would end: facts are found from the bottom up, each record once.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from lakestream.schemas.avro.types import Array, AvroType, Fixed, Map, Plain, Record, Union


@dataclass(frozen=True, slots=True)
class Facts:
    """Of records, by their ids."""

    empty: frozenset[int]
    """Those whose values take no bytes."""
    bare: frozenset[int]
    """Those that can be written without any column of theirs: there is one way to be, or a way to be nothing."""

    @classmethod
    def of(cls, type_: AvroType) -> "Facts":
        records = list(_records(type_))
        return cls(_holding(records, _is_empty), _holding(records, _is_bare))

    def is_empty(self, type_: AvroType) -> bool:
        return _is_empty(type_, self.empty)

    def is_bare(self, type_: AvroType) -> bool:
        return _is_bare(type_, self.bare)


def _holding(records: list[Record], holds: Callable[[AvroType, Set[int]], bool]) -> frozenset[int]:
    """The records all of whose fields are so, given those that are."""
    found, is_new = set[int](), True
    while is_new:
        is_new = False
        for record in reversed(records):
            if id(record) not in found and all(holds(part.type, found) for part in record.fields):
                found.add(id(record))
                is_new = True
    return frozenset(found)


def _records(top: AvroType) -> Iterator[Record]:
    """All that a type is made of, each once, the outer ones first."""
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
                waiting += [part.type for part in type_.fields]


def _is_empty(type_: AvroType, empty: Set[int]) -> bool:
    match type_:
        case Plain("null") | Fixed(size=0):
            return True
        case Record():
            return id(type_) in empty
        case _:
            return False


def _is_bare(type_: AvroType, bare: Set[int]) -> bool:
    match type_:
        case Plain("null") | Fixed(size=0) | Array() | Map():
            return True
        case Union(branches):
            return any(_is_bare(branch, bare) for branch in branches)
        case Record():
            return id(type_) in bare
        case _:
            return False
