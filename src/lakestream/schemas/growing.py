"""A table's columns meet the shape of a schema: which column each field has, and what the table has to become for that.

Before: columns.py; a schema's shape.  After: a `Writer` with the bounds, and a commit of the columns, if they changed.

A field is looked for by its number (Protobuf), by its name, then by the names it had before; whoever is not there is
added. Columns are only ever added, widened as Iceberg allows it, renamed, made optional: whatever was in the table can
be read as before, by all writers that it had. A field whose type does not fit has no column, and a reason why.

Two things need `before`, the shapes that were bound to this table earlier: numbers, which columns do not have, and
columns that others have renamed since.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

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
from lakestream.schemas.matching import FIRST_FREE_ID, KEY, STREAM, Bond, Finding, Match, Names
from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct, Type
from lakestream.schemas.writers import Bound

COLUMNS_MAX: Final = 5_000
"""Of one table, at all depths. JSON with ever new keys would have a column for each."""
DEPTH_MAX: Final = 32
DOC_MAX: Final = 1_000
NOTHING: Final[frozenset[Kind]] = frozenset()
NOT_IN_DELTA: Final = frozenset((Kind.TIME,))
"""What Delta has no type for: where a table is a Delta table too, it gets no such column."""


class Known(NamedTuple):
    """A shape that this table has columns for already."""

    shape: Struct
    bounds: tuple[Bound | None, ...]
    numbers_count: bool = False
    """Whether the numbers of its fields mean the same in the shape that comes: it is the same message."""


class Grown(NamedTuple):
    columns: tuple[Column, ...]
    bounds: tuple[Bound | None, ...]
    """One for each field of the shape."""
    reasons: tuple[str, ...]
    """Why fields have no column, each with its name."""
    next_id: int
    """The first field id that nobody has."""


def grown(
    columns: Sequence[Column],
    shape: Struct,
    next_id: int,
    before: Sequence[Known] = (),
    *,
    spreads: bool = False,
    unsaid: Set[Kind] = NOTHING,
) -> Grown:
    """With columns for the values of this shape. `spreads`: a field that does not fit its column has another one, with
    a `_` behind its name; that is for values without a schema, where nobody has promised anything. `unsaid`: no column
    of such a type is added."""
    growing = _Growing(next_id, columns, spreads, unsaid)
    kept, new, bounds = growing.fields(columns, shape, None, [_of_fields(one) for one in before])
    return Grown(beside_stream(kept, new), bounds, tuple(growing.reasons), growing.next_id)


def grown_key(
    columns: Sequence[Column],
    shape: Struct,
    next_id: int,
    before: Sequence[Known] = (),
    *,
    spreads: bool = False,
    unsaid: Set[Kind] = NOTHING,
) -> Grown:
    """With columns for keys of this shape, below the column `_key`."""
    own = key_column(columns, before)
    if own is None and any(column.name.casefold() == KEY for column in columns):
        reason = f"column {KEY} is none that keys have made: rename it, then keys have columns too"
        return Grown(tuple(columns), (None,) * len(shape.fields), (reason,), next_id)
    growing = _Growing(next_id, columns, spreads, unsaid)
    column = own or Column(growing.given(), KEY, Fields(()))
    kept, new, bounds = growing.fields(inner_columns(column.type), shape, KEY, [_of_fields(one) for one in before])
    if not kept and not new:
        return Grown(tuple(columns), bounds, tuple(growing.reasons), next_id)
    wider = replace(column, type=Fields((*kept, *new)))
    made = beside_stream(columns, [wider]) if own is None else tuple(wider if one is own else one for one in columns)
    return Grown(made, bounds, tuple(growing.reasons), growing.next_id)


def key_column(columns: Sequence[Column], before: Sequence[Known] = ()) -> Column | None:
    """The one that keys are in, also if somebody has given it another name."""
    bound = {one.field_id for known in before for one in known.bounds if one is not None}
    structs = [one for one in columns if isinstance(one.type, Fields) and one.field_id >= FIRST_FREE_ID]
    for column in structs:
        if any(inner.field_id in bound for inner in inner_columns(column.type)):
            return column
    return next((column for column in structs if column.name == KEY), None)


def beside_stream(columns: Sequence[Column], new: Sequence[Column]) -> tuple[Column, ...]:
    """The key and the stream come last; what others have put behind these stays there."""
    is_last = [one.name == KEY or (one.name == STREAM and one.field_id < FIRST_FREE_ID) for one in columns]
    place = is_last.index(True) if any(is_last) else len(columns)
    if any(one.name == KEY for one in new):
        place = next((at for at, one in enumerate(columns) if one.name == STREAM), len(columns))
    return (*columns[:place], *new, *columns[place:])


def _of_fields(known: Known) -> Bond:
    return Bond(known.shape, known.bounds, known.numbers_count)


class _Fit(NamedTuple):
    column: Column
    bound: Bound


class _Growing:
    """One meeting: counts ids, and gathers reasons."""

    def __init__(self, next_id: int, columns: Sequence[Column], spreads: bool, unsaid: Set[Kind]) -> None:
        self._spreads = spreads
        self._unsaid = unsaid
        self.next_id = max(next_id, FIRST_FREE_ID)
        self.reasons: list[str] = []
        self._room = COLUMNS_MAX - sum(1 for _ in all_columns(columns))

    def given(self) -> int:
        self.next_id += 1
        self._room -= 1
        return self.next_id - 1

    def fields(
        self, columns: Sequence[Column], shape: Struct, path: str | None, before: Sequence[Bond]
    ) -> tuple[list[Column], list[Column], tuple[Bound | None, ...]]:
        """The columns that were there, as they are now; new ones; and where each field is."""
        is_top = path is None
        finding = Finding(columns, shape, before, is_top)
        found = finding.find()
        names = Names(columns, shape, is_top)
        kept = {column.field_id: column for column in columns}
        new: list[Column] = []
        bounds: list[Bound | None] = []
        for one, match in zip(shape.fields, found, strict=True):
            where = one.name if path is None else f"{path}.{one.name}"
            if match is None:
                fit = self._added(one, names, where)
                if fit is not None:
                    new.append(fit.column)
            else:
                start = len(self.reasons)
                fit = self._met_first(kept, [match, *finding.others(one)], one.type, where, before)
                if fit is not None:
                    column = fit.column
                    if match.renamed and column.field_id == match.field_id:
                        column = replace(column, name=names.renamed(column.name, one.name))
                    kept[column.field_id] = column
                    finding.take(column.field_id)
                elif self._spreads and (fit := self._added(one, names, where)) is not None:
                    new.append(fit.column)
                    del self.reasons[start:]
            bounds.append(fit.bound if fit is not None else None)
        return list(kept.values()), new, tuple(bounds)

    def _met_first(
        self,
        columns: Mapping[int, Column],
        matches: Sequence[Match],
        kind: Type,
        where: str,
        before: Sequence[Bond],
    ) -> _Fit | None:
        """With the first of these columns that fits. Else it is told of the very first why it does not."""
        start, told = len(self.reasons), 0
        for match in matches:
            fit = self._met(columns[match.field_id], kind, where, _bonds_of(match.field_id, before))
            if fit is not None:
                del self.reasons[start : start + told]
                return fit
            told = told or len(self.reasons) - start
            del self.reasons[start + told :]
        return None

    # A field that the table has not had

    def _added(self, one: Field, names: Names, where: str) -> _Fit | None:
        fit = self._new("", one.type, where)
        if fit is None:
            return None
        return _Fit(replace(fit.column, name=names.free(one.name), doc=one.doc[:DOC_MAX]), fit.bound)

    def _new(self, name: str, kind: Type, where: str, depth: int = 0) -> _Fit | None:
        """Ids go to a type before what is inside it; one that comes to nothing gives its id back."""
        if self._room <= 0:
            self.reasons.append(f"field {where} has no column: the table has {COLUMNS_MAX} already, and gets no more")
            return None
        if depth > DEPTH_MAX:
            self.reasons.append(f"field {where[:100]}… has no column: it is nested deeper than {DEPTH_MAX} levels")
            return None
        before = self.next_id, self._room
        field_id = self.given()
        made = self._new_type(kind, where, depth)
        if made is None:
            self.next_id, self._room = before
            return None
        column_type, children = made
        return _Fit(Column(field_id, name, column_type, required=name == "key"), Bound(field_id, children))

    def _new_type(self, kind: Type, where: str, depth: int) -> tuple[ColumnType, tuple[Bound | None, ...]] | None:
        match kind:
            case Primitive():
                return None if self._is_unsaid(kind, where) else (kind, ())
            case ListOf(element):
                inner = self._new("element", element, f"{where}.element", depth + 1)
                return None if inner is None else (ListColumn(inner.column), (inner.bound,))
            case MapOf(key, value):
                keys = self._new("key", key, f"{where}.key", depth + 1)
                values = self._new("value", value, f"{where}.value", depth + 1)
                if keys is None or values is None:
                    return None
                return MapColumn(keys.column, values.column), (keys.bound, values.bound)
            case Struct():
                return self._new_fields(kind, where, depth)

    def _is_unsaid(self, kind: Primitive, where: str) -> bool:
        if kind.kind not in self._unsaid:
            return False
        told = (
            f"field {where} has no column: it is of type {kind}, which Delta does not have (lakestream.table.formats)"
        )
        self.reasons.append(told)
        return True

    def _new_fields(self, shape: Struct, where: str, depth: int) -> tuple[ColumnType, tuple[Bound | None, ...]] | None:
        names = Names((), shape, is_top=False)
        fits = [(one, self._new("", one.type, f"{where}.{one.name}", depth + 1)) for one in shape.fields]
        columns = [
            replace(fit.column, name=names.free(one.name), doc=one.doc[:DOC_MAX])
            for one, fit in fits
            if fit is not None
        ]
        if not columns:
            if not fits:
                self.reasons.append(f"field {where} has no column: it is a record without fields")
            return None
        return Fields(tuple(columns)), tuple(fit and fit.bound for _, fit in fits)

    # A field that has a column

    def _met(self, column: Column, kind: Type, where: str, before: Sequence[Bond]) -> _Fit | None:
        """None: it does not fit; a reason has been given."""
        match column.type, kind:
            case Primitive() as there, Primitive():
                wider = _wider(there, kind)
                made = None if wider is None else (wider, ())
            case Fields(fields), Struct():
                kept, new, bounds = self.fields(fields, kind, where, before)
                return _Fit(_optional(column, Fields((*kept, *new))), Bound(column.field_id, bounds))
            case ListColumn(element), ListOf(inner):
                fit = self._met(element, inner, f"{where}.element", _inside(element.field_id, 0, before))
                return fit and _Fit(_optional(column, ListColumn(fit.column)), Bound(column.field_id, (fit.bound,)))
            case MapColumn(key, value), MapOf(key_kind, value_kind):
                return self._met_map(column, (key, value), (key_kind, value_kind), where, before)
            case _:
                made = None
        if made is None:
            self.reasons.append(f"field {where} is {_spelled(kind)}, and column {column.name} is {_said(column.type)}")
            return None
        return _Fit(_optional(column, made[0]), Bound(column.field_id))

    def _met_map(
        self,
        column: Column,
        there: tuple[Column, Column],
        kinds: tuple[Primitive, Type],
        where: str,
        before: Sequence[Bond],
    ) -> _Fit | None:
        key, value = there
        if not isinstance(key.type, Primitive) or _wider(key.type, kinds[0]) != key.type:
            # Iceberg does not change the keys of maps.
            self.reasons.append(f"field {where}.key is {kinds[0]}, and column {column.name}.key is {_said(key.type)}")
            return None
        fit = self._met(value, kinds[1], f"{where}.value", _inside(value.field_id, 1, before))
        if fit is None:
            return None
        bound = Bound(column.field_id, (Bound(key.field_id), fit.bound))
        return _Fit(_optional(column, MapColumn(key, fit.column)), bound)


def _optional(column: Column, kind: ColumnType) -> Column:
    return replace(column, type=kind, required=False)


def _bonds_of(field_id: int, before: Sequence[Bond]) -> list[Bond]:
    """Of the fields that had this column."""
    return [
        Bond(one.type, bound.children, bond.numbers_count)
        for bond in before
        for one, bound in bond.fields()
        if bound.field_id == field_id
    ]


def _inside(field_id: int, place: int, before: Sequence[Bond]) -> list[Bond]:
    """Of elements of lists, and values of maps."""
    found = []
    for bond in before:
        inner = bond.type.element if isinstance(bond.type, ListOf) else None
        if isinstance(bond.type, MapOf):
            inner = bond.type.value
        bound = bond.children[place] if place < len(bond.children) else None
        if inner is not None and bound is not None and bound.field_id == field_id:
            found.append(Bond(inner, bound.children, bond.numbers_count))
    return found


# Types


def _wider(there: Primitive, other: Primitive) -> Primitive | None:
    """What holds both, as far as Iceberg lets a column of the first become it."""
    if there == other:
        return there
    kinds = {there.kind, other.kind}
    if kinds == {Kind.INT, Kind.LONG}:
        return Primitive(Kind.LONG)
    if kinds == {Kind.FLOAT, Kind.DOUBLE}:
        return Primitive(Kind.DOUBLE)
    if kinds == {Kind.DECIMAL} and there.scale == other.scale:
        return replace(there, precision=max(there.precision, other.precision))
    return None


def _spelled(kind: Type) -> str:
    return (
        str(kind) if isinstance(kind, Primitive) else {Struct: "a struct", ListOf: "a list", MapOf: "a map"}[type(kind)]
    )


def _said(kind: ColumnType) -> str:
    match kind:
        case Primitive():
            return str(kind)
        case Foreign(text):
            return text
        case Fields():
            return "a struct"
        case ListColumn():
            return "a list"
        case MapColumn():
            return "a map"
