"""The Parquet columns of a table: the leaves of its columns, in file order, and how each is written.

Before: the table's columns, from its metadata.  After: parquet_writer.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_table.columns import FIRST_FREE_ID, OFFSET_ID, VALUE_ID
from lakestream.data.table.arrow.types import arrow_schema
from lakestream.data.table.write.column_bounds import has_bounds
from lakestream.schemas.columns import Column, Fields, Foreign, ListColumn, MapColumn
from lakestream.schemas.types import Kind, Primitive

BOUNDED_MAX: Final = 100
"""Converted columns with bounds, as in Iceberg's own libraries: of thousands, most would never be used in a filter."""
_NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.TIMESTAMPTZ)
_Step = Callable[[Any], Any]


class Leaf(NamedTuple):
    field_id: int
    kind: Primitive
    path: str
    """The path in the Parquet schema."""
    steps: tuple[_Step, ...]
    """The steps from the batch's column to the values."""
    is_once: bool
    """A row has at most one value: the leaf is in no list and no map."""
    is_bounded: bool = False

    @property
    def is_typed(self) -> bool:
        """Whether it is not one of the stream's own columns."""
        return self.field_id >= FIRST_FREE_ID

    @property
    def top(self) -> str:
        return self.path.partition(".")[0]

    def of(self, group: Any) -> list[Any]:
        """Returns its values in each chunk of a table; of a leaf in lists, one per element."""
        values = []
        for chunk in group.column(self.top).chunks:
            for step in self.steps:
                chunk = step(chunk)
            values.append(chunk)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class ParquetColumns:
    schema: Any
    """The Arrow schema."""
    all: tuple[Leaf, ...]
    """All leaves in the order of the file."""
    typed: tuple[str, ...]
    """Columns that are not the stream's own."""
    value: str | None
    """The column of values that are bytes."""

    @property
    def offset_place(self) -> int:
        return next(place for place, leaf in enumerate(self.all) if leaf.field_id == OFFSET_ID)


@lru_cache(maxsize=64)
def leaves_of(columns: tuple[Column, ...]) -> ParquetColumns:
    left, chosen = BOUNDED_MAX, []
    for leaf in (leaf for column in columns for leaf in _leaves(column, (), (), True)):
        is_bounded = leaf.is_once and (
            left > 0 and has_bounds(leaf.kind) if leaf.is_typed else leaf.kind.kind in _NUMBERS
        )
        left -= leaf.is_typed and is_bounded
        chosen.append(leaf._replace(is_bounded=is_bounded))
    typed = tuple(column.name for column in columns if column.field_id >= FIRST_FREE_ID)
    value = next((column.name for column in columns if column.field_id == VALUE_ID), None)
    return ParquetColumns(arrow_schema(columns), tuple(chosen), typed, value)


def _leaves(
    column: Column, above: tuple[str, ...], steps: tuple[_Step, ...], is_once: bool, name: str | None = None
) -> Iterator[Leaf]:
    path = (*above, column.name if name is None else name)
    match column.type:
        case Primitive():
            yield Leaf(column.field_id, column.type, ".".join(path), steps, is_once)
        case Fields(fields):
            for place, field in enumerate(fields):
                yield from _leaves(field, path, (*steps, _field(place)), is_once)
        case ListColumn(element):
            yield from _leaves(element, (*path, "list"), (*steps, _elements), False, "element")
        case MapColumn(key, value):
            yield from _leaves(key, (*path, "key_value"), (*steps, _keys), False, "key")
            yield from _leaves(value, (*path, "key_value"), (*steps, _items), False, "value")
        case Foreign(text):
            raise TypeError(f"column {'.'.join(path)} has type {text}, which cannot be written")


def _field(place: int) -> _Step:
    return lambda array: array.field(place)


def _elements(array: Any) -> Any:
    """Returns all elements, also those below null lists: Arrow cannot drop these for all types (UUIDs)."""
    offsets = array.offsets
    if not len(offsets):
        return array.values.slice(0, 0)
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return array.values.slice(start, end - start)


def _keys(array: Any) -> Any:
    return array.keys


def _items(array: Any) -> Any:
    return array.items


def sample(leaf: Leaf, group: Any, rows: int) -> Any:
    """Returns the first values that are not null, in a type for which Arrow computes distinct values."""
    chunks = leaf.of(group.slice(0, rows))
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return chunks[0].slice(0, 0)
    kind = chunks[0].type
    if isinstance(kind, pa.BaseExtensionType):
        chunks, kind = [chunk.storage for chunk in chunks], kind.storage_type
    values = pa.chunked_array(chunks, kind).slice(0, rows)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.binary())
    return values.drop_null()
