"""Columns of a schema's shape ⇄ columns of a table: what fields are called, where they stand and how wide they are.

Before: arrow.py, which has a frame as columns in the order of its schema.  After: the table's columns, by field id;
and the other way round, from a file whose columns anybody may have renamed, moved or widened since.

Nothing is copied but what is widened: columns get other names and another order.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow import field_id_of, field_of
from lakestream.data.typed.arrow import arrow_type
from lakestream.errors import Corrupt
from lakestream.schemas.columns import Column, Fields, ListColumn, MapColumn, all_columns
from lakestream.schemas.shape import Field, ListOf, MapOf, Primitive, Struct, Type, children
from lakestream.schemas.writers import Bound


class Projection:
    """Of one shape onto columns that are siblings: those of the table, or those of its column `_key`."""

    def __init__(self, shape: Struct, bounds: Sequence[Bound | None], columns: Sequence[Column]) -> None:
        self.shape = shape
        there = {column.field_id: column for column in columns}
        ids = {column.field_id for column in all_columns(columns)}
        self._bounds = [_present(field.type, bound, ids) for field, bound in zip(shape.fields, bounds, strict=True)]
        self._columns = [None if one is None else there[one.field_id] for one in self._bounds]
        self.without_column = tuple(_without_column(Struct(shape.fields), self._bounds, ""))
        """Names of the parts of the shape that no column takes."""

    def forward(self, rows: Any) -> dict[int, Any]:
        """The columns of a struct of this shape, by field id. It must not be a slice."""
        assert not rows.offset, "a slice has buffers that are not its own"
        found = {}
        for place, (field, bound, column) in enumerate(
            zip(self.shape.fields, self._bounds, self._columns, strict=True)
        ):
            if bound is not None and column is not None:
                found[column.field_id] = _put(rows.field(place), field.type, bound, column, field_of(column).type)
        return found

    def back(self, columns: Mapping[int, Any], count: int, absent: Any = None) -> Any:
        """The struct again, as `struct_of` makes it."""
        return struct_of(self.shape, self._bounds, columns, count, absent)


def struct_of(
    shape: Struct, bounds: Sequence[Bound | None], columns: Mapping[int, Any], count: int, absent: Any = None
) -> Any:
    """The struct of a shape out of a table's columns, which come by field id, each with those of its fields in Arrow's
    metadata. Of so many rows; `absent`: which of them are null as a whole. Corrupt: a column is not there any more."""
    fields = [
        _back(None if bound is None else columns.get(bound.field_id), field.type, bound, count, field.name)
        for field, bound in zip(shape.fields, bounds, strict=True)
    ]
    if not fields:  # Arrow would not know how many rows there are
        bitmap = None if absent is None else pa.py_buffer(np.packbits(~np.asarray(absent), bitorder="little"))
        return pa.Array.from_buffers(pa.struct([]), count, [bitmap], -1 if bitmap is not None else 0, children=[])
    return pa.StructArray.from_arrays(fields, [field.name for field in shape.fields], mask=absent)


def bound_ids(bounds: Sequence[Bound | None]) -> Iterator[int]:
    for bound in bounds:
        if bound is not None:
            yield bound.field_id
            yield from bound_ids(bound.children)


# Into the table's columns


def _put(array: Any, kind: Type, bound: Bound, column: Column, target: Any) -> Any:
    match kind, column.type:
        case Primitive(), Primitive():
            return array if array.type == target else array.cast(target)
        case Struct(fields), Fields(columns):
            below = [_put_field(array, fields, bound, one, target.field(n).type) for n, one in enumerate(columns)]
            return _remade(array, target, [], below)
        case ListOf(element), ListColumn(inner):
            elements = bound.children[0]
            assert elements is not None, "a list has a column only if its elements have one"
            values = _put(array.values, element, elements, inner, target.value_type)
            return _remade(array, target, [array.buffers()[1]], [values])
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
            return _remade(array, target, [array.buffers()[1]], [entries])
        case _:
            raise TypeError(f"column {column.name} has another form than what is to go into it")


def _put_field(struct: Any, fields: Sequence[Field], bound: Bound, column: Column, target: Any) -> Any:
    for place, one in enumerate(bound.children):
        if one is not None and one.field_id == column.field_id:
            return _put(struct.field(place), fields[place].type, one, column, target)
    return pa.nulls(len(struct), target)


def _remade(array: Any, target: Any, buffers: list[Any], below: list[Any]) -> Any:
    return pa.Array.from_buffers(target, len(array), [array.buffers()[0], *buffers], array.null_count, 0, below)


# Back


def _back(array: Any, kind: Type, bound: Bound | None, count: int, path: str) -> Any:
    """In the order of the shape. Names and widths do not matter to who reads it (`arrow.py:from_arrow`)."""
    if bound is None:
        return pa.nulls(count, arrow_type(kind))
    if array is None:
        raise Corrupt(
            f"the column of {path} (field id {bound.field_id}) is gone, without which values are none any more"
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


def _back_fields(array: Any, fields: Sequence[Field], bound: Bound, path: str) -> Any:
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
        raise Corrupt(f"the column of {path} is {array.type} now, not {kind} any more")


def _only(bound: Bound, field: Any, place: int) -> Bound | None:
    """The bound of an element, key or value, if it is still the same column."""
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


# What is lost


def _present(kind: Type, bound: Bound | None, ids: Set[int]) -> Bound | None:
    """Without what the table has no column for any more."""
    if bound is None or bound.field_id not in ids:
        return None
    below = tuple(_present(one, child, ids) for one, child in zip(children(kind), bound.children, strict=True))
    is_whole = isinstance(kind, Struct) or all(one is not None for one in below)
    return Bound(bound.field_id, below) if is_whole else None


def _without_column(kind: Type, bounds: Sequence[Bound | None], path: str) -> Iterator[str]:
    match kind:
        case Struct(fields):
            for field, bound in zip(fields, bounds, strict=True):
                where = f"{path}.{field.name}" if path else field.name
                if bound is None:
                    yield where
                else:
                    yield from _without_column(field.type, bound.children, where)
        case ListOf(element):
            yield from _inner_without(element, bounds[0], f"{path}.element")
        case MapOf(key, value):
            yield from _inner_without(key, bounds[0], f"{path}.key")
            yield from _inner_without(value, bounds[1], f"{path}.value")
        case Primitive():
            return


def _inner_without(kind: Type, bound: Bound | None, path: str) -> Iterator[str]:
    if bound is None:
        yield path
    else:
        yield from _without_column(kind, bound.children, path)
