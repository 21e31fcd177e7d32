"""Rows of a file, as whoever wrote it has them, to a table's columns: by field id, whatever they are called there.

Before: groups.py, which read them.  After: parquet.py, which writes them into another file.  What the file has not is
null, what the table has widened since is widened. Texts and bytes are plain, so that rows can be picked from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow import field_id_of, primitive_type
from lakestream.schemas.columns import Column, Fields, Foreign, ListColumn, MapColumn
from lakestream.schemas.shape import Primitive


def conformed(batch: Any, columns: Sequence[Column]) -> Any:
    """A record batch with these columns."""
    there = {_number(field, columns): place for place, field in enumerate(batch.schema)}
    arrays = [
        _array(batch.column(there[one.field_id]), one) if one.field_id in there else pa.nulls(len(batch), _type(one))
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
            raise TypeError(f"column {column.name} is {text}, which is not written here")


def _number(field: Any, siblings: Sequence[Column]) -> int:
    """Of a field of the file; where it has no number, by its name."""
    found = field_id_of(field)
    if found is not None:
        return found
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
            raise TypeError(f"column {column.name} is {text}, which is not written here")
