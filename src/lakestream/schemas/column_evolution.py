"""Evolves the columns of a table for the shape of a schema, and binds each field of the shape to a column.

Before: columns.py; the shape of a schema.  After: a `WriterSchema` with the bindings, and a commit of the columns if
they changed.

A field is matched to a column by its number (Protobuf), by its name, then by its aliases. If there is no match, a
column is added. Columns are only added, widened as Iceberg allows it, renamed, or made optional: existing rows and
writer schemas stay readable. A field whose type does not fit its column gets no column, and a reason is reported.

`before` contains the shapes that were bound to this table earlier. It is needed for field numbers, which columns do not
have, and for columns that were renamed since by an engine.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

from lakestream.schemas.column_matching import (
    FIRST_FREE_ID,
    KEY,
    STREAM,
    ColumnMatcher,
    ColumnNames,
    EarlierBinding,
    Match,
)
from lakestream.schemas.columns import (
    Column,
    ColumnType,
    Fields,
    Foreign,
    ListColumn,
    MapColumn,
    all_columns,
    inner_columns,
)
from lakestream.schemas.field_path import below
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type
from lakestream.schemas.writer_schema import ColumnBinding

COLUMNS_MAX: Final = 5_000
"""Of one table, at all depths. Without a limit, JSON with ever new keys would add a column for each key."""
DEPTH_MAX: Final = 32
DOC_MAX: Final = 1_000
NOTHING: Final[frozenset[Kind]] = frozenset()
NOT_IN_DELTA: Final = frozenset((Kind.TIME,))
"""Types that Delta does not have. A table that is also a Delta table gets no such column."""


class BoundShape(NamedTuple):
    """A shape that is bound to columns of the table."""

    shape: Struct
    bindings: tuple[ColumnBinding | None, ...]
    matches_by_number: bool = False
    """Whether field numbers have the same meaning as in the new shape, because both are the same message."""


class EvolvedColumns(NamedTuple):
    columns: tuple[Column, ...]
    bindings: tuple[ColumnBinding | None, ...]
    """One for each field of the shape."""
    reasons: tuple[str, ...]
    """The fields without a column, each with the reason."""
    next_id: int
    """The first unused field id."""


def evolve_columns(
    columns: Sequence[Column],
    shape: Struct,
    next_id: int,
    before: Sequence[BoundShape] = (),
    *,
    adds_on_conflict: bool = False,
    unsupported: Set[Kind] = NOTHING,
) -> EvolvedColumns:
    """Returns the columns of the table with columns for values of this shape.

    `adds_on_conflict`: a field that does not fit its column gets a new column with a `_` after its name. This is
    for values without a schema, whose types may change at any time. `unsupported`: types that get no column."""
    evolution = _Evolution(next_id, columns, adds_on_conflict, unsupported)
    kept, new, bindings = evolution.fields(columns, shape, None, [_earlier_binding(one) for one in before])
    return EvolvedColumns(insert_before_stream(kept, new), bindings, tuple(evolution.reasons), evolution.next_id)


def evolve_key_columns(
    columns: Sequence[Column],
    shape: Struct,
    next_id: int,
    before: Sequence[BoundShape] = (),
    *,
    adds_on_conflict: bool = False,
    unsupported: Set[Kind] = NOTHING,
) -> EvolvedColumns:
    """Returns the columns of the table with columns for keys of this shape, below the column `_key`."""
    own = key_column(columns, before)
    if own is None and any(column.name.casefold() == KEY for column in columns):
        reason = f"column {KEY} was not created for record keys: rename it, then keys get columns"
        return EvolvedColumns(tuple(columns), (None,) * len(shape.fields), (reason,), next_id)
    evolution = _Evolution(next_id, columns, adds_on_conflict, unsupported)
    column = own or Column(evolution.new_id(), KEY, Fields(()))
    kept, new, bindings = evolution.fields(
        inner_columns(column.type), shape, KEY, [_earlier_binding(one) for one in before]
    )
    if not kept and not new:
        return EvolvedColumns(tuple(columns), bindings, tuple(evolution.reasons), next_id)
    evolved = replace(column, type=Fields((*kept, *new)))
    if own is None:
        all_evolved = insert_before_stream(columns, [evolved])
    else:
        all_evolved = tuple(evolved if one is own else one for one in columns)
    return EvolvedColumns(all_evolved, bindings, tuple(evolution.reasons), evolution.next_id)


def key_column(columns: Sequence[Column], before: Sequence[BoundShape] = ()) -> Column | None:
    """Returns the column of the keys, also if an engine has renamed it."""
    bound = {binding.field_id for one in before for binding in one.bindings if binding is not None}
    structs = [one for one in columns if isinstance(one.type, Fields) and one.field_id >= FIRST_FREE_ID]
    for column in structs:
        if any(inner.field_id in bound for inner in inner_columns(column.type)):
            return column
    return next((column for column in structs if column.name == KEY), None)


def insert_before_stream(columns: Sequence[Column], new: Sequence[Column]) -> tuple[Column, ...]:
    """Inserts new columns before `_key` and `_stream`. Columns that an engine added behind these stay there."""
    is_last = [one.name == KEY or (one.name == STREAM and one.field_id < FIRST_FREE_ID) for one in columns]
    position = is_last.index(True) if any(is_last) else len(columns)
    if any(one.name == KEY for one in new):
        position = next((at for at, one in enumerate(columns) if one.name == STREAM), len(columns))
    return (*columns[:position], *new, *columns[position:])


def _earlier_binding(bound: BoundShape) -> EarlierBinding:
    return EarlierBinding(bound.shape, bound.bindings, bound.matches_by_number)


class _BoundColumn(NamedTuple):
    column: Column
    binding: ColumnBinding


class _Evolution:
    """One evolution: assigns field ids and collects reasons."""

    def __init__(self, next_id: int, columns: Sequence[Column], adds_on_conflict: bool, unsupported: Set[Kind]) -> None:
        self._adds_on_conflict = adds_on_conflict
        self._unsupported = unsupported
        self.next_id = max(next_id, FIRST_FREE_ID)
        self.reasons: list[str] = []
        self._columns_left = COLUMNS_MAX - sum(1 for _ in all_columns(columns))

    def new_id(self) -> int:
        self.next_id += 1
        self._columns_left -= 1
        return self.next_id - 1

    def fields(
        self, columns: Sequence[Column], shape: Struct, path: str | None, before: Sequence[EarlierBinding]
    ) -> tuple[list[Column], list[Column], tuple[ColumnBinding | None, ...]]:
        """Returns the existing columns after evolution, the new columns, and the binding of each field."""
        is_top = path is None
        matcher = ColumnMatcher(columns, shape, before, is_top)
        matches = matcher.match()
        names = ColumnNames(columns, shape, is_top)
        earlier = _by_field_id(before)
        kept = {column.field_id: column for column in columns}
        new: list[Column] = []
        bindings: list[ColumnBinding | None] = []
        for one, match in zip(shape.fields, matches, strict=True):
            where = below(path or "", one.name)
            if match is None:
                bound = self._add(one, names, where)
                if bound is not None:
                    new.append(bound.column)
            else:
                start = len(self.reasons)
                bound = self._bind_first(kept, [match, *matcher.alternatives(one)], one.type, where, earlier)
                if bound is not None:
                    column = bound.column
                    if match.renamed and column.field_id == match.field_id:
                        column = replace(column, name=names.renamed(column.name, one.name))
                    kept[column.field_id] = column
                    matcher.reserve(column.field_id)
                elif self._adds_on_conflict and (bound := self._add(one, names, where)) is not None:
                    new.append(bound.column)
                    del self.reasons[start:]
            bindings.append(bound.binding if bound is not None else None)
        return list(kept.values()), new, tuple(bindings)

    def _bind_first(
        self,
        columns: Mapping[int, Column],
        matches: Sequence[Match],
        kind: Type,
        where: str,
        earlier: Mapping[int, Sequence[EarlierBinding]],
    ) -> _BoundColumn | None:
        """Binds the first of these columns that fits. If none fits, only the reasons of the first column are kept."""
        start, count = len(self.reasons), 0
        for match in matches:
            bound = self._bind(columns[match.field_id], kind, where, earlier.get(match.field_id, ()))
            if bound is not None:
                del self.reasons[start : start + count]
                return bound
            count = count or len(self.reasons) - start
            del self.reasons[start + count :]
        return None

    # New fields

    def _add(self, one: Field, names: ColumnNames, where: str) -> _BoundColumn | None:
        bound = self._new("", one.type, where)
        if bound is None:
            return None
        return _BoundColumn(replace(bound.column, name=names.free(one.name), doc=one.doc[:DOC_MAX]), bound.binding)

    def _new(self, name: str, kind: Type, where: str, depth: int = 0) -> _BoundColumn | None:
        """Creates a column. Its field id is assigned before those inside it, and released if the type has no column."""
        if self._columns_left <= 0:
            self.reasons.append(f"field {where} has no column: the table has the maximum of {COLUMNS_MAX} columns")
            return None
        if depth > DEPTH_MAX:
            self.reasons.append(f"field {where[:100]}… has no column: it is nested deeper than {DEPTH_MAX} levels")
            return None
        before = self.next_id, self._columns_left
        field_id = self.new_id()
        created = self._new_type(kind, where, depth)
        if created is None:
            self.next_id, self._columns_left = before
            return None
        column_type, children = created
        column = Column(field_id, name, column_type, required=name == "key")
        return _BoundColumn(column, ColumnBinding(field_id, children))

    def _new_type(
        self, kind: Type, where: str, depth: int
    ) -> tuple[ColumnType, tuple[ColumnBinding | None, ...]] | None:
        match kind:
            case Primitive():
                return None if self._is_unsupported(kind, where) else (kind, ())
            case ListOf(element):
                inner = self._new("element", element, below(where, "element"), depth + 1)
                return None if inner is None else (ListColumn(inner.column), (inner.binding,))
            case MapOf(key, value):
                keys = self._new("key", key, below(where, "key"), depth + 1)
                values = self._new("value", value, below(where, "value"), depth + 1)
                if keys is None or values is None:
                    return None
                return MapColumn(keys.column, values.column), (keys.binding, values.binding)
            case Struct():
                return self._new_fields(kind, where, depth)

    def _is_unsupported(self, kind: Primitive, where: str) -> bool:
        if kind.kind not in self._unsupported:
            return False
        self.reasons.append(
            f"field {where} has no column: Delta does not support its type {kind} (lakestream.table.formats)"
        )
        return True

    def _new_fields(
        self, shape: Struct, where: str, depth: int
    ) -> tuple[ColumnType, tuple[ColumnBinding | None, ...]] | None:
        names = ColumnNames((), shape, is_top=False)
        bound = [(one, self._new("", one.type, below(where, one.name), depth + 1)) for one in shape.fields]
        columns = [
            replace(new.column, name=names.free(one.name), doc=one.doc[:DOC_MAX])
            for one, new in bound
            if new is not None
        ]
        if not columns:
            if not bound:
                self.reasons.append(f"field {where} has no column: it is a record without fields")
            return None
        return Fields(tuple(columns)), tuple(new and new.binding for _, new in bound)

    # Fields with an existing column

    def _bind(self, column: Column, kind: Type, where: str, before: Sequence[EarlierBinding]) -> _BoundColumn | None:
        """Binds a field to a column. Returns None, after it has added a reason, if the types do not fit."""
        match column.type, kind:
            case Primitive() as current, Primitive():
                wider = _wider(current, kind)
                if wider is not None:
                    return _BoundColumn(_optional(column, wider), ColumnBinding(column.field_id))
            case Fields(fields), Struct():
                kept, new, bindings = self.fields(fields, kind, where, before)
                return _BoundColumn(_optional(column, Fields((*kept, *new))), ColumnBinding(column.field_id, bindings))
            case ListColumn(element), ListOf(inner):
                bound = self._bind(element, inner, below(where, "element"), _inside(element.field_id, 0, before))
                return bound and _BoundColumn(
                    _optional(column, ListColumn(bound.column)), ColumnBinding(column.field_id, (bound.binding,))
                )
            case MapColumn(key, value), MapOf(key_kind, value_kind):
                return self._bind_map(column, (key, value), (key_kind, value_kind), where, before)
            case _:
                pass
        self.reasons.append(f"field {where} is {_describe(kind)}, but column {column.name} is {_describe(column.type)}")
        return None

    def _bind_map(
        self,
        column: Column,
        inner: tuple[Column, Column],
        kinds: tuple[Primitive, Type],
        where: str,
        before: Sequence[EarlierBinding],
    ) -> _BoundColumn | None:
        key, value = inner
        if not isinstance(key.type, Primitive) or _wider(key.type, kinds[0]) != key.type:
            # Iceberg does not allow changes of map keys.
            self.reasons.append(
                f"field {where}.key is {kinds[0]}, but column {column.name}.key is {_describe(key.type)}"
            )
            return None
        bound = self._bind(value, kinds[1], below(where, "value"), _inside(value.field_id, 1, before))
        if bound is None:
            return None
        binding = ColumnBinding(column.field_id, (ColumnBinding(key.field_id), bound.binding))
        return _BoundColumn(_optional(column, MapColumn(key, bound.column)), binding)


def _optional(column: Column, kind: ColumnType) -> Column:
    return replace(column, type=kind, required=False)


def _by_field_id(before: Sequence[EarlierBinding]) -> dict[int, list[EarlierBinding]]:
    """Returns the types and bindings of the fields that were bound to each column earlier."""
    by_id: dict[int, list[EarlierBinding]] = {}
    for earlier in before:
        for one, binding in earlier.fields():
            inner = EarlierBinding(one.type, binding.children, earlier.matches_by_number)
            by_id.setdefault(binding.field_id, []).append(inner)
    return by_id


def _inside(field_id: int, position: int, before: Sequence[EarlierBinding]) -> list[EarlierBinding]:
    """Returns the earlier bindings of list elements (position 0) or map values (position 1)."""
    bindings = []
    for earlier in before:
        inner = earlier.type.element if isinstance(earlier.type, ListOf) else None
        if isinstance(earlier.type, MapOf):
            inner = earlier.type.value
        binding = earlier.children[position] if position < len(earlier.children) else None
        if inner is not None and binding is not None and binding.field_id == field_id:
            bindings.append(EarlierBinding(inner, binding.children, earlier.matches_by_number))
    return bindings


# Types


def _wider(current: Primitive, other: Primitive) -> Primitive | None:
    """Returns the type for values of both types, or None if Iceberg does not allow that promotion of the first one."""
    if current == other:
        return current
    kinds = {current.kind, other.kind}
    if kinds == {Kind.INT, Kind.LONG}:
        return Primitive(Kind.LONG)
    if kinds == {Kind.FLOAT, Kind.DOUBLE}:
        return Primitive(Kind.DOUBLE)
    if kinds == {Kind.DECIMAL} and current.scale == other.scale:
        return replace(current, precision=max(current.precision, other.precision))
    return None


def _describe(kind: Type | ColumnType) -> str:
    match kind:
        case Primitive():
            return str(kind)
        case Foreign(text):
            return text
        case Struct() | Fields():
            return "a struct"
        case ListOf() | ListColumn():
            return "a list"
        case MapOf() | MapColumn():
            return "a map"
