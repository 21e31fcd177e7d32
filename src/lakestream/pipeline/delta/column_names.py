"""Reads the column names inside a file from its footer.

Used for files of other engines and after renames of columns, because Delta readers find columns by these names.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from lakestream.catalog.locations import Locations
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.field_names import fields_of
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.data.table.read.parquet_footer import BAD_PARQUET, TAIL_BYTES, footer_size
from lakestream.errors import Corrupt
from lakestream.model import Span
from lakestream.storage.object_store import ObjectStore

_ID_KEY: Final = b"PARQUET:field_id"


class FileNames:
    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        self._objects = objects
        self._locations = locations

    async def misnamed(self, file: LiveFile, schema: Json, names: Mapping[int, str]) -> str:
        """Returns a column of the file that Delta readers would not find or would confuse; empty if there is none.

        `names`: the column names of the Delta table, by field id.
        """
        tail = await self._tail(file, TAIL_BYTES)
        if (size := footer_size(tail, file.location)) > len(tail):
            tail = await self._tail(file, size)
        return await asyncio.to_thread(_misnamed, tail, file.location, schema, names)

    async def _tail(self, file: LiveFile, size: int) -> bytes:
        span = Span(max(0, file.size - size), file.size)
        (body,) = await self._objects.get_ranges(self._locations.key_of(file.location), [span])
        return bytes(body)


def _misnamed(tail: bytes, location: str, schema: Json, names: Mapping[int, str]) -> str:
    try:
        columns = pq.read_metadata(pa.BufferReader(pa.py_buffer(tail))).schema.to_arrow_schema()
        present = list(_numbered(columns))
    except BAD_PARQUET as error:
        raise Corrupt(f"{location} has a damaged footer ({error}); restore it from a backup") from error
    if not present:
        return "columns without field ids"
    iceberg_names = {field["id"]: field["name"] for _, field in fields_of(schema)}
    ids = {(above, names[field["id"]].lower()): field["id"] for above, field in fields_of(schema)}
    for above, field_id, name in present:
        if field_id in iceberg_names and names[field_id] != name:
            return f"column {iceberg_names[field_id]} under the name {name}, not {names[field_id]}"
        if ids.get((above, name.lower()), field_id) != field_id:
            return f"another column under the name {name}"
    return ""


def _numbered(fields: Any, above: int = 0) -> Iterator[tuple[int, int, str]]:
    """Yields fields of structs at all depths: id of the parent, own id, name."""
    for field in fields:
        field_id = _id(field)
        if field_id is not None:
            yield above, field_id, field.name
        yield from _inside(field.type, field_id)


def _inside(kind: Any, above: int | None) -> Iterator[tuple[int, int, str]]:
    if pa.types.is_struct(kind):
        yield from _numbered(kind, -1 if above is None else above)
    elif pa.types.is_map(kind):
        for field in (kind.key_field, kind.item_field):
            yield from _inside(field.type, _id(field))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _inside(kind.value_type, _id(kind.value_field))


def _id(field: Any) -> int | None:
    text = (field.metadata or {}).get(_ID_KEY)
    return None if text is None else int(text)
