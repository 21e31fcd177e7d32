"""Matches the fields of a shape to the columns of a struct: by number, by name, then by alias. Pure.

Used by column_evolution.py. A column is matched to at most one field. Column names differ in more than case, so that
every engine can distinguish them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count as count_from
from typing import Final, NamedTuple

from lakestream.schemas.columns import Column
from lakestream.schemas.types import Field, Struct, Type
from lakestream.schemas.writer_schema import ColumnBinding

STREAM: Final = "_stream"
KEY: Final = "_key"
FIRST_FREE_ID: Final = 16
"""Columns with a lower id are those of `_stream`. No field of a schema is bound to them."""
NAME_MAX: Final = 200
STEM_MAX: Final = 190
"""Maximum length of a name before a number suffix, in characters."""
UNDERSCORES_MAX: Final = 8


def column_name(name: str) -> str:
    """Returns a column name that every engine supports. Dots are replaced, because they separate nested columns."""
    cleaned = "".join("_" if char == "." or not char.isprintable() else char for char in name[:NAME_MAX])
    return cleaned or "_"


class EarlierBinding(NamedTuple):
    """A type that was bound to a column earlier, and the bindings of its children."""

    type: Type
    children: tuple[ColumnBinding | None, ...]
    matches_by_number: bool

    def fields(self) -> Iterator[tuple[Field, ColumnBinding]]:
        if isinstance(self.type, Struct):
            for one, binding in zip(self.type.fields, self.children, strict=False):
                if binding is not None:
                    yield one, binding


class Match(NamedTuple):
    field_id: int
    renamed: bool = False
    """Whether the column is renamed to the name of the field."""


class ColumnMatcher:
    """Matches sibling fields to sibling columns.

    A column is matched to at most one field. The criteria are applied in order of certainty, each to all fields that
    are still without a match."""

    def __init__(
        self, columns: Sequence[Column], shape: Struct, before: Sequence[EarlierBinding], is_top: bool
    ) -> None:
        self._shape = shape
        free = [one for one in columns if not is_top or not (one.field_id < FIRST_FREE_ID or one.name == KEY)]
        self._names = {one.field_id: one.name for one in free}
        self._ids = {one.name: one.field_id for one in free}
        self._folded = {one.name.casefold() for one in columns} | ({STREAM, KEY} if is_top else set())
        self._stems: dict[str, list[str]] = {}
        for name in sorted(self._ids, key=len):
            self._stems.setdefault(name.rstrip("_"), []).append(name)
        self._with_number: dict[str, deque[str]] = {}
        """Names of the form `stem_number`, by stem."""
        for name in self._ids:  # the order in which the columns were added is that of the numbers
            stem, _, number = name.rpartition("_")
            if number.isdecimal():
                self._with_number.setdefault(stem, deque()).append(name)
        earlier = [(one, binding.field_id, bound) for bound in before for one, binding in bound.fields()]
        self._numbered = {
            one.number: (field_id, one.name)
            for one, field_id, bound in earlier
            if bound.matches_by_number and one.number is not None
        }
        self._ids_by_field_name: dict[str, list[int]] = {}
        """Columns by the names of the fields that were bound to them. A name may have several, of different types."""
        for one, field_id, _ in earlier:
            if field_id not in self._ids_by_field_name.setdefault(one.name, []):
                self._ids_by_field_name[one.name].append(field_id)
        self._bound_ids = {field_id for _, field_id, _ in earlier}
        self._numbers: dict[int, set[int]] = {}
        for one, field_id, bound in earlier:
            if bound.matches_by_number and one.number is not None:
                self._numbers.setdefault(field_id, set()).add(one.number)
        self._reserved: set[int] = set()

    def reserve(self, field_id: int) -> None:
        self._reserved.add(field_id)

    def alternatives(self, one: Field) -> list[Match]:
        """Returns further columns for a field whose matched column does not fit: those bound to a field of this name,
        and unbound ones with a `_` at the end, which an engine may have added for it."""
        matches = [*self._bound_to(one), *self._unbound_with_suffix(column_name(one.name))]
        return [match for match in matches if match.field_id in self._names and match.field_id not in self._reserved]

    def match(self) -> list[Match | None]:
        """Returns the match of each field, in the order of the fields."""
        matches: dict[int, Match] = {}
        for step in (self._by_number, self._by_name, self._by_suffixed_name, self._by_alias):
            for position, one in enumerate(self._shape.fields):
                if position in matches or (match := step(one)) is None:
                    continue
                if match.field_id in self._names and match.field_id not in self._reserved:
                    matches[position] = match
                    self._reserved.add(match.field_id)
        return [matches.get(position) for position in range(len(self._shape.fields))]

    def _by_number(self, one: Field) -> Match | None:
        if one.number is None or one.number not in self._numbered:
            return None
        field_id, name = self._numbered[one.number]
        return Match(field_id, one.name != name and self._has_name_of(field_id, name))

    def _by_name(self, one: Field) -> Match | None:
        return next(iter(self._bound_to(one)), None) or self._unbound(column_name(one.name))

    def _by_suffixed_name(self, one: Field) -> Match | None:
        """Matches a column that got a suffix because its name was in use when it was added."""
        name = column_name(one.name)
        if name.casefold() not in self._folded:
            return None
        free = (match for match in self._unbound_with_suffix(name) if match.field_id not in self._reserved)
        return next(free, None) or self._by_number_suffix(name)

    def _by_number_suffix(self, name: str) -> Match | None:
        """Matches a column with a number suffix, which ColumnNames assigns if no name with `_` is left."""
        most = name + "_" * UNDERSCORES_MAX
        if len(most) <= NAME_MAX and most.casefold() not in self._folded:
            return None
        numbered = self._with_number.get(name[:STEM_MAX], ())
        while numbered:
            match = self._unbound(numbered.popleft())
            if match is not None and match.field_id not in self._reserved:
                return match
        return None

    def _unbound_with_suffix(self, name: str) -> list[Match]:
        longer = [other for other in self._stems.get(name.rstrip("_"), ()) if other.startswith(f"{name}_")]
        return [match for other in longer if (match := self._unbound(other)) is not None]

    def _bound_to(self, one: Field) -> list[Match]:
        existing = [field_id for field_id in self._ids_by_field_name.get(one.name, ()) if field_id in self._names]
        return [Match(field_id) for field_id in existing if not self._has_other_number(field_id, one)]

    def _by_alias(self, one: Field) -> Match | None:
        for alias in one.aliases:
            if field_ids := self._ids_by_field_name.get(alias):
                return Match(field_ids[0], self._has_name_of(field_ids[0], alias))
            if (match := self._unbound(column_name(alias))) is not None:
                return Match(match.field_id, renamed=True)
        return None

    def _has_other_number(self, field_id: int, one: Field) -> bool:
        """Returns whether the column belongs to a field of the message with this name but another number."""
        numbers = self._numbers.get(field_id)
        return one.number is not None and numbers is not None and one.number not in numbers

    def _unbound(self, name: str) -> Match | None:
        """Returns the column of that name if no field was ever bound to it."""
        field_id = self._ids.get(name)
        return None if field_id is None or field_id in self._bound_ids else Match(field_id)

    def _has_name_of(self, field_id: int, name: str) -> bool:
        """Returns whether a column still has the name of the field. If an engine has renamed it, the name is kept."""
        return self._names.get(field_id, "").rstrip("_") == column_name(name).rstrip("_")


class ColumnNames:
    """Unique names of sibling columns.

    Engines fold case, so two names must not differ in case alone. A field with a name in use gets one or more `_` at
    the end of its column name; after UNDERSCORES_MAX of them, a number."""

    def __init__(self, columns: Sequence[Column], shape: Struct, is_top: bool) -> None:
        self._used = {column.name.casefold() for column in columns}
        if is_top:
            self._used |= {STREAM, KEY}
        self._field_names = {column_name(one.name).casefold() for one in shape.fields}
        self._numbers: dict[str, Iterator[int]] = {}
        """The next number suffixes, by stem."""

    def free(self, name: str) -> str:
        name = column_name(name)
        if name.casefold() in self._used:
            name = next(one for one in self._with_suffixes(name) if not self._is_taken(one.casefold()))
        self._used.add(name.casefold())
        return name

    def _with_suffixes(self, name: str) -> Iterator[str]:
        yield from (name + "_" * count for count in range(1, min(UNDERSCORES_MAX, NAME_MAX - len(name)) + 1))
        stem = name[:STEM_MAX]
        for number in self._numbers.setdefault(stem.casefold(), count_from(1)):
            yield f"{stem}_{number}"

    def _is_taken(self, folded: str) -> bool:
        return folded in self._used or folded in self._field_names

    def renamed(self, old: str, name: str) -> str:
        self._used.discard(old.casefold())
        return self.free(name)
