"""The columns that Parquet knows: the leaves of a table's columns, in its order, and how each is written.

Before: the table's columns, from its metadata.  After: parquet.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.topic_layout import FIRST_FREE_ID, OFFSET_ID, VALUE_ID
from lakestream.data.table.arrow import arrow_schema
from lakestream.data.table.bounds import has_bounds
from lakestream.schemas.columns import Column, Fields, Foreign, ListColumn, MapColumn
from lakestream.schemas.shape import Kind, Primitive

BOUNDED_MAX: Final = 100
"""Typed columns with bounds, as in Iceberg's own libraries: of thousands, most would never be asked for."""
_NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.TIMESTAMPTZ)
_Step = Callable[[Any], Any]


class Leaf(NamedTuple):
    field_id: int
    kind: Primitive
    path: str
    """As Parquet spells it."""
    steps: tuple[_Step, ...]
    """From the batch's column to its values."""
    is_once: bool
    """A row has one at most: it is in no list and no map."""
    is_bounded: bool = False

    @property
    def is_typed(self) -> bool:
        """Not one of the stream's own."""
        return self.field_id >= FIRST_FREE_ID

    @property
    def top(self) -> str:
        return self.path.partition(".")[0]

    def of(self, group: Any) -> list[Any]:
        """Its values in each chunk of a table; of a leaf in lists only as many as there are."""
        found = []
        for chunk in group.column(self.top).chunks:
            for step in self.steps:
                chunk = step(chunk)
            found.append(chunk)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    schema: Any
    """In Arrow."""
    all: tuple[Leaf, ...]
    """In the order of the file."""
    typed: tuple[str, ...]
    """Columns that are not the stream's own."""
    value: str | None
    """The column of values that are bytes."""

    @property
    def offset_place(self) -> int:
        return next(place for place, leaf in enumerate(self.all) if leaf.field_id == OFFSET_ID)


@lru_cache(maxsize=64)
def leaves_of(columns: tuple[Column, ...]) -> Leaves:
    found = [leaf for column in columns for leaf in _leaves(column, (), (), True)]
    room, chosen = BOUNDED_MAX, []
    for leaf in found:
        is_bounded = leaf.is_once and (
            room > 0 and has_bounds(leaf.kind) if leaf.is_typed else leaf.kind.kind in _NUMBERS
        )
        room -= leaf.is_typed and is_bounded
        chosen.append(leaf._replace(is_bounded=is_bounded))
    typed = tuple(column.name for column in columns if column.field_id >= FIRST_FREE_ID)
    value = next((column.name for column in columns if column.field_id == VALUE_ID), None)
    return Leaves(arrow_schema(columns), tuple(chosen), typed, value)


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
            raise TypeError(f"column {'.'.join(path)} is {text}, which is not written here")


def _field(place: int) -> _Step:
    return lambda array: array.field(place)


def _elements(array: Any) -> Any:
    """With what may lie below null lists: Arrow cannot leave that out of all types (UUIDs)."""
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
    """Its first values that are not null, in a type that Arrow finds equal ones in."""
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
