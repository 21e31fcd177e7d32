"""Maps the columns of a writer schema to the columns of a table and back: names, order and width.

Before: arrow.py, which makes columns in the order of the schema.  After: the table's columns, by field id. In reverse
order for a file whose columns may have been renamed, moved or widened since it was written.

Only widened columns are copied; others get another name and place.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.types import field_id_of, field_of
from lakestream.data.typed.arrow import arrow_type
from lakestream.errors import Corrupt
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, all_columns
from lakestream.schemas.field_path import below
from lakestream.schemas.types import Field, ListOf, MapOf, Primitive, Struct, Type, children
from lakestream.schemas.writer_schema import ColumnBinding


class Projection:
    """Mapping of one shape to the top-level columns of a table, or to those inside its column `_key`."""

    def __init__(self, shape: Struct, bounds: Sequence[ColumnBinding | None], columns: Sequence[Column]) -> None:
        self.shape = shape
        columns_by_id = {column.field_id: column for column in columns}
        ids = {column.field_id for column in all_columns(columns)}
        self._bounds = [_present(field.type, bound, ids) for field, bound in zip(shape.fields, bounds, strict=True)]
        self._columns = [None if one is None else columns_by_id[one.field_id] for one in self._bounds]
        self.without_column = tuple(_without_column(Struct(shape.fields), self._bounds, ""))
        """Paths of the parts of the shape that have no column."""

    def forward(self, rows: Any) -> dict[int, Any]:
        """Returns the columns of a struct of this shape, by field id. The struct must not be a slice."""
        assert not rows.offset, "a slice shares buffers with its parent"
        found = {}
        for place, (field, bound, column) in enumerate(
            zip(self.shape.fields, self._bounds, self._columns, strict=True)
        ):
            if bound is not None and column is not None:
                found[column.field_id] = _put(rows.field(place), field.type, bound, column, field_of(column).type)
        return found

    def back(self, columns: Mapping[int, Any], count: int, absent: Any = None) -> Any:
        """Returns the struct made of the table's columns; see `struct_of`."""
        return struct_of(self.shape, self._bounds, columns, count, absent)


def struct_of(
    shape: Struct, bounds: Sequence[ColumnBinding | None], columns: Mapping[int, Any], count: int, absent: Any = None
) -> Any:
    """Returns the struct of a shape, made of a table's columns.

    `columns`: by field id; nested fields have theirs in Arrow's metadata. `count`: number of rows. `absent`: rows that
    are null as a whole. Corrupt: a column is missing.
    """
    fields = [
        _back(None if bound is None else columns.get(bound.field_id), field.type, bound, count, field.name)
        for field, bound in zip(shape.fields, bounds, strict=True)
    ]
    if not fields:  # StructArray.from_arrays takes the length from the fields
        bitmap = None if absent is None else pa.py_buffer(np.packbits(~np.asarray(absent), bitorder="little"))
        return pa.Array.from_buffers(pa.struct([]), count, [bitmap], -1 if bitmap is not None else 0, children=[])
    return pa.StructArray.from_arrays(fields, [field.name for field in shape.fields], mask=absent)


def bound_ids(bounds: Sequence[ColumnBinding | None]) -> Iterator[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from bound_ids(bound.children)


# Struct to table columns


def _put(array: Any, kind: Type, bound: ColumnBinding, column: Column, target: Any) -> Any:
    match kind, column.type:
        case Primitive(), Primitive():
            return array if array.type == target else array.cast(target)
        case Struct(fields), Fields(columns):
            places = {one.field_id: place for place, one in enumerate(bound.children) if one is not None}
            below = []
            for column_place, one in enumerate(columns):
                place, its_target = places.get(one.field_id), target.field(column_place).type
                child = None if place is None else bound.children[place]
                if place is None or child is None:
                    below.append(pa.nulls(len(array), its_target))
                else:
                    below.append(_put(array.field(place), fields[place].type, child, one, its_target))
            return _rebuilt(array, target, [], below)
        case ListOf(element), ListColumn(inner):
            elements = bound.children[0]
            assert elements is not None, "a list has a column only if its elements have one"
            values = _put(array.values, element, elements, inner, target.value_type)
            return _rebuilt(array, target, [array.buffers()[1]], [values])
        case MapOf(key, value), MapColumn(key_column, value_column):
            keys_bound, values_bound = bound.children
            assert keys_bound is not None, "a map has a column only if its keys have one"
            assert values_bound is not None, "a map has a column only if its values have one"
            entries = pa.StructArray.from_arrays(
                [
                    _put(array.keys, key, keys_bound, key_column, target.key_type),
                    _put(array.items, value, values_bound, value_column, target.item_type),
                ],
                fields=[target.key_field, target.item_field],
            )
            return _rebuilt(array, target, [array.buffers()[1]], [entries])
        case _:
            raise TypeError(f"column {column.name} has another form than its field")


def _rebuilt(array: Any, target: Any, buffers: list[Any], below: list[Any]) -> Any:
    return pa.Array.from_buffers(target, len(array), [array.buffers()[0], *buffers], array.null_count, 0, below)


# Table columns to struct


def _back(array: Any, kind: Type, bound: ColumnBinding | None, count: int, path: str) -> Any:
    """Returns a column with its children in the order of the shape. `from_arrow` ignores names and widths."""
    if bound is None:
        return pa.nulls(count, arrow_type(kind))
    if array is None:
        raise Corrupt(
            f"the column of {path} (field id {bound.field_id}) is missing, and values cannot be restored without it"
        )
    match kind:
        case Primitive():
            return array
        case Struct(fields):
            return _back_fields(array, fields, bound, path)
        case ListOf(element):
            _check(pa.types.is_list(array.type) or pa.types.is_large_list(array.type), array, path, "a list")
            values = array.values
            below = _back(values, element, _only(bound, array.type.value_field, 0), len(values), f"{path}.element")
            return array if below is values else _list(array, below)
        case MapOf(key, value):
            _check(pa.types.is_map(array.type), array, path, "a map")
            keys, items = array.keys, array.items
            backward = (
                _back(keys, key, _only(bound, array.type.key_field, 0), len(keys), f"{path}.key"),
                _back(items, value, _only(bound, array.type.item_field, 1), len(items), f"{path}.value"),
            )
            return array if backward[0] is keys and backward[1] is items else _map(array, *backward)


def _back_fields(array: Any, fields: Sequence[Field], bound: ColumnBinding, path: str) -> Any:
    _check(pa.types.is_struct(array.type), array, path, "a struct")
    places = {field_id_of(array.type.field(place)): place for place in range(array.type.num_fields)}
    found = []
    for field, one in zip(fields, bound.children, strict=True):
        place = None if one is None else places.get(one.field_id)
        child = None if place is None else array.field(place)
        found.append(_back(child, field.type, one, len(array), f"{path}.{field.name}"))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(found, [field.name for field in fields], mask=mask)


def _check(is_right: bool, array: Any, path: str, kind: str) -> None:
    if not is_right:
        raise Corrupt(f"the column of {path} is {array.type}, not {kind}")


def _only(bound: ColumnBinding, field: Any, place: int) -> ColumnBinding | None:
    """Returns the binding of an element, key or value if the column still has the same field id."""
    one = bound.children[place]
    return one if one is not None and field_id_of(field) in (None, one.field_id) else None


def _list(array: Any, values: Any) -> Any:
    offsets = pa.array(np.asarray(array.offsets))
    mask = array.is_null() if array.null_count else None
    make = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return make.from_arrays(offsets, values, mask=mask)


def _map(array: Any, keys: Any, items: Any) -> Any:
    offsets = pa.array(np.asarray(array.offsets))
    mask = array.is_null() if array.null_count else None
    return pa.MapArray.from_arrays(offsets, keys, items, mask=mask)


# Parts without a column


def _present(kind: Type, bound: ColumnBinding | None, ids: Set[int]) -> ColumnBinding | None:
    """Returns the binding without the parts whose columns were dropped; None if nothing is left."""
    if bound is None or bound.field_id not in ids:
        return None
    below = tuple(_present(one, child, ids) for one, child in zip(children(kind), bound.children, strict=True))
    is_whole = isinstance(kind, Struct) or all(one is not None for one in below)
    return ColumnBinding(bound.field_id, below) if is_whole else None


def _without_column(kind: Type, bounds: Sequence[ColumnBinding | None], path: str) -> Iterator[str]:
    match kind:
        case Struct(fields):
            for field, bound in zip(fields, bounds, strict=True):
                where = below(path, field.name)
                if bound is None:
                    yield where
                else:
                    yield from _without_column(field.type, bound.children, where)
        case ListOf(element):
            yield from _inner_without(element, bounds[0], below(path, "element"))
        case MapOf(key, value):
            yield from _inner_without(key, bounds[0], below(path, "key"))
            yield from _inner_without(value, bounds[1], below(path, "value"))
        case Primitive():
            return


def _inner_without(kind: Type, bound: ColumnBinding | None, path: str) -> Iterator[str]:
    if bound is None:
        yield path
    else:
        yield from _without_column(kind, bound.children, path)
