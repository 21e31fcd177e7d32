"""Which column of a struct is which field's: by number, by name, by the names that it had before. Pure.

Part of growing.py. Each column is that of one field at most; names are such that every engine can tell them apart.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lakestream.schemas.columns import Column
from lakestream.schemas.shape import Field, Struct, Type
from lakestream.schemas.writers import Bound

STREAM: Final = "_stream"
KEY: Final = "_key"
FIRST_FREE_ID: Final = 16
"""Columns below are the stream's own, which no field of a schema is bound to."""
NAME_MAX: Final = 200


def column_name(name: str) -> str:
    """A name that every engine can spell: a dot divides the names of nested columns."""
    cleaned = "".join("_" if char == "." or not char.isprintable() else char for char in name[:NAME_MAX])
    return cleaned or "_"


class Bond(NamedTuple):
    """A type that was bound to a column earlier, and how."""

    type: Type
    children: tuple[Bound | None, ...]
    numbers_count: bool

    def fields(self) -> Iterator[tuple[Field, Bound]]:
        if isinstance(self.type, Struct):
            for one, bound in zip(self.type.fields, self.children, strict=False):
                if bound is not None:
                    yield one, bound


class Match(NamedTuple):
    field_id: int
    renamed: bool = False
    """The column is to have the name of the field."""


class Finding:
    """Among siblings. Each column is that of one field at most: first all go by what is sure, then by what is left."""

    def __init__(self, columns: Sequence[Column], shape: Struct, before: Sequence[Bond], is_top: bool) -> None:
        self._shape = shape
        free = [one for one in columns if not is_top or not (one.field_id < FIRST_FREE_ID or one.name == KEY)]
        self._names = {one.field_id: one.name for one in free}
        self._ids = {one.name: one.field_id for one in free}
        self._folded = {one.name.casefold() for one in columns} | ({STREAM, KEY} if is_top else set())
        self._stems: dict[str, list[str]] = {}
        for name in sorted(self._ids, key=len):
            self._stems.setdefault(name.rstrip("_"), []).append(name)
        bonds = [(one, bound.field_id, bond) for bond in before for one, bound in bond.fields()]
        self._numbered = {
            one.number: (field_id, one.name)
            for one, field_id, bond in bonds
            if bond.numbers_count and one.number is not None
        }
        self._bound: dict[str, list[int]] = {}
        """By the name that a field had. It may have several, of several types."""
        for one, field_id, _ in bonds:
            if field_id not in self._bound.setdefault(one.name, []):
                self._bound[one.name].append(field_id)
        self._known = {field_id for _, field_id, _ in bonds}
        self._numbers = {
            (field_id, one.number) for one, field_id, bond in bonds if bond.numbers_count and one.number is not None
        }
        self._taken: set[int] = set()

    def take(self, field_id: int) -> None:
        self._taken.add(field_id)

    def others(self, one: Field) -> list[Match]:
        """Columns that may be meant where the one that was found does not fit: of this name too, or with a `_` behind,
        which somebody may have added for it."""
        found = [*self._bound_to(one), *self._unbound_behind(column_name(one.name))]
        return [match for match in found if match.field_id in self._names and match.field_id not in self._taken]

    def find(self) -> list[Match | None]:
        found: dict[int, Match] = {}
        for step in (self._by_number, self._by_name, self._by_evaded_name, self._by_alias):
            for place, one in enumerate(self._shape.fields):
                if place in found or (match := step(one)) is None:
                    continue
                if match.field_id in self._names and match.field_id not in self._taken:
                    found[place] = match
                    self._taken.add(match.field_id)
        return [found.get(place) for place in range(len(self._shape.fields))]

    def _by_number(self, one: Field) -> Match | None:
        if one.number is None or one.number not in self._numbered:
            return None
        field_id, name = self._numbered[one.number]
        return Match(field_id, one.name != name and self._has_name_of(field_id, name))

    def _by_name(self, one: Field) -> Match | None:
        return next(iter(self._bound_to(one)), None) or self._unbound(column_name(one.name))

    def _by_evaded_name(self, one: Field) -> Match | None:
        """It had another name's column beside it when it came, or that of the stream."""
        name = column_name(one.name)
        if name.casefold() not in self._folded:
            return None
        free = (match for match in self._unbound_behind(name) if match.field_id not in self._taken)
        return next(free, None)

    def _unbound_behind(self, name: str) -> list[Match]:
        longer = [other for other in self._stems.get(name.rstrip("_"), ()) if other.startswith(f"{name}_")]
        return [match for other in longer if (match := self._unbound(other)) is not None]

    def _bound_to(self, one: Field) -> list[Match]:
        found = self._bound.get(one.name, ())
        there = [field_id for field_id in found if field_id in self._names]
        return [Match(field_id) for field_id in there if not self._is_of_another_number(field_id, one)]

    def _by_alias(self, one: Field) -> Match | None:
        for alias in one.aliases:
            if field_ids := self._bound.get(alias):
                return Match(field_ids[0], self._has_name_of(field_ids[0], alias))
            if (match := self._unbound(column_name(alias))) is not None:
                return Match(match.field_id, renamed=True)
        return None

    def _is_of_another_number(self, field_id: int, one: Field) -> bool:
        """The name was given to another field of the message."""
        numbers = {number for known_id, number in self._numbers if known_id == field_id}
        return one.number is not None and bool(numbers) and one.number not in numbers

    def _unbound(self, name: str) -> Match | None:
        """A column of that name which is nobody's yet, as far as anybody knows."""
        field_id = self._ids.get(name)
        return None if field_id is None or field_id in self._known else Match(field_id)

    def _has_name_of(self, field_id: int, name: str) -> bool:
        """Or somebody else has named it since, and knew why."""
        return self._names.get(field_id, "").rstrip("_") == column_name(name).rstrip("_")


class Names:
    """Of siblings. Engines fold case, so no two may differ in that alone; a field that would is given a `_` behind."""

    def __init__(self, columns: Sequence[Column], shape: Struct, is_top: bool) -> None:
        self._used = {column.name.casefold() for column in columns}
        if is_top:
            self._used |= {STREAM, KEY}
        self._wished = {column_name(one.name).casefold() for one in shape.fields}

    def free(self, name: str) -> str:
        name = column_name(name)
        if name.casefold() in self._used:
            name = f"{name}_"
            while name.casefold() in self._used | self._wished:
                name = f"{name}_"
        self._used.add(name.casefold())
        return name

    def renamed(self, old: str, name: str) -> str:
        self._used.discard(old.casefold())
        return self.free(name)
