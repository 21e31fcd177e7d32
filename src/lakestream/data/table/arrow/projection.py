"""Projects the rows of a file to a table's columns, by field id, and picks rows by their positions. Blocks.

Before: row_groups.py, which reads the rows.  After: parquet_writer.py, which writes them into another file.

Columns that the file lacks are null. Columns whose type the table has widened since are cast. Strings and bytes come
out as plain types, not views, because Arrow cannot pick rows from views.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.types import field_id_of, primitive_type
from lakestream.data.table.kernels.compile import Longs
from lakestream.schemas.columns import Column, Fields, Foreign, ListColumn, MapColumn
from lakestream.schemas.types import Primitive


def project_columns(batch: Any, columns: Sequence[Column]) -> Any:
    """Returns a record batch with these columns."""
    places_by_id = {_number(field, columns): place for place, field in enumerate(batch.schema)}
    arrays = [
        _array(batch.column(places_by_id[one.field_id]), one)
        if one.field_id in places_by_id
        else pa.nulls(len(batch), _type(one))
        for one in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _array(array: Any, column: Column) -> Any:
    kind, mask = column.type, array.is_null() if array.null_count else None
    match kind:
        case Primitive():
            target = primitive_type(kind)
            return array if array.type == target else array.cast(target)
        case Fields(fields):
            places = {_number(array.type.field(place), fields): place for place in range(array.type.num_fields)}
            below = [
                _array(array.field(places[one.field_id]), one)
                if one.field_id in places
                else pa.nulls(len(array), _type(one))
                for one in fields
            ]
            return pa.StructArray.from_arrays(below, [one.name for one in fields], mask=mask)
        case ListColumn(element):
            offsets, values = pa.array(np.asarray(array.offsets)), _array(array.values, element)
            return pa.ListArray.from_arrays(offsets, values, pa.list_(_field(element)), mask=mask)
        case MapColumn(key, value):
            offsets, keys, items = (
                pa.array(np.asarray(array.offsets)),
                _array(array.keys, key),
                _array(array.items, value),
            )
            return pa.MapArray.from_arrays(offsets, keys, items, pa.map_(_field(key), _field(value)), mask=mask)
        case Foreign(text):
            raise TypeError(f"column {column.name} has type {text}, which cannot be written")


def _number(field: Any, siblings: Sequence[Column]) -> int:
    """Returns the id of a field of the file; if it has none, that of the sibling with its name, or 0."""
    field_id = field_id_of(field)
    if field_id is not None:
        return field_id
    return next((column.field_id for column in siblings if column.name == field.name), 0)


def _field(column: Column) -> Any:
    return pa.field(column.name, _type(column), not column.required)


def _type(column: Column) -> Any:
    match column.type:
        case Primitive() as kind:
            return primitive_type(kind)
        case Fields(fields):
            return pa.struct([pa.field(one.name, _type(one)) for one in fields])
        case ListColumn(element):
            return pa.list_(_field(element))
        case MapColumn(key, value):
            return pa.map_(_field(key), _field(value))
        case Foreign(text):
            raise TypeError(f"column {column.name} has type {text}, which cannot be written")


def picked(rows: Any, places: Longs) -> Any:
    """Returns these rows of a record batch or table, in this order, with views cast to plain types."""
    return rows.cast(pa.schema([_without_views(field) for field in rows.schema])).take(pa.array(places))


def _without_views(field: Any) -> Any:
    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_without_views(one) for one in kind]))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_without_views(kind.value_field)))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_without_views(kind.key_field), _without_views(kind.item_field)))
    if pa.types.is_binary_view(kind):
        return field.with_type(pa.binary())
    return field.with_type(pa.string()) if pa.types.is_string_view(kind) else field
