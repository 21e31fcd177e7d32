"""Rows of record batches and tables, picked by their places, in any order. Blocks."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.compiled import Longs


def picked(rows: Any, places: Longs) -> Any:
    """Of a record batch or a table. Arrow cannot pick from views of bytes, so there are none in what comes out."""
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
