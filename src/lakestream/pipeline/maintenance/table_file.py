"""Reads a file of a table in a worker: its footer, then columns of its row groups. Applies deletes."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.locations import TableFolder
from lakestream.catalog.topic_table.columns import COLUMNS, RAW_VALUE_ID, SCHEMA_ID, STREAM, VALUE_ID
from lakestream.data.table.arrow.byte_spans import numbers
from lakestream.data.table.arrow.projection import picked, project_columns
from lakestream.data.table.arrow.types import arrow_schema
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read.parquet_footer import TAIL_BYTES, Footer, footer_size, read_footer
from lakestream.data.table.read.position_deletes import joined, read_positions
from lakestream.data.table.read.row_groups import RowGroupPart, read_batches
from lakestream.errors import Corrupt, Missing, OutOfRange
from lakestream.model import Buffer, Span
from lakestream.pipeline.maintenance.tasks import SourceFile
from lakestream.schemas.columns import Column, leaf_ids
from lakestream.storage.object_store import ObjectStore

KEY_ID: Final = next(column.field_id for column in COLUMNS[1].fields if column.name == "key")
VALUES: Final = (VALUE_ID, SCHEMA_ID, RAW_VALUE_ID)
"""A row with null in all of these columns has no value."""
TIMES: Final = tuple(
    column.field_id for column in COLUMNS[1].fields if column.name in ("offset", "timestamp", "timestamp_ms")
)


class TableFiles:
    """The files of one task. Each delete file is read once."""

    def __init__(self, objects: ObjectStore, folder: TableFolder) -> None:
        self._objects = objects
        self._folder = folder
        self._positions: dict[str, dict[str, Longs]] = {}

    async def open(self, source: SourceFile) -> "TableFile":
        """Reads the footer and the deletes. Corrupt: the file is damaged, missing, or outside the table's folder."""
        key = self._folder.named_key(source.location)
        tail = await self._read(key, [Span(max(0, source.size - TAIL_BYTES), source.size)])
        if (needed := footer_size(tail[0], source.location)) > len(tail[0]):
            tail = await self._read(key, [Span(max(0, source.size - needed), source.size)])
        footer = read_footer(tail[0], source.size, source.location)
        return TableFile(self, key, footer, await self._deleted(source))

    async def body(self, key: str) -> Buffer:
        return await self._objects.get(key)

    async def _deleted(self, source: SourceFile) -> Longs | None:
        found = []
        for location in source.deletes:
            if location not in self._positions:
                body = await self._objects.get(self._folder.named_key(location))
                self._positions[location] = read_positions(body, location)
            positions = self._positions[location].get(source.location)
            if positions is not None:
                found.append(positions)
        return joined(found)

    async def _read(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._objects.get_ranges(key, spans)
        except (Missing, OutOfRange) as error:
            raise Corrupt(f"{key} is missing or truncated ({error})") from error

    async def read_spans(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._read(key, spans)


class TableFile:
    def __init__(self, files: TableFiles, key: str, footer: Footer, deleted: Longs | None) -> None:
        self._files = files
        self._key = key
        self.footer = footer
        self.deleted = deleted
        """Positions of deleted rows."""

    def has_only(self, columns: tuple[Column, ...]) -> bool:
        """Whether the file has no other columns, so that rewriting it with these loses nothing."""
        return self.footer.leaf_ids() <= leaf_ids(columns)

    async def rows(self, group: int, ids: Sequence[int]) -> list[Any]:
        """Returns the live rows as record batches, with the stream's column names."""
        part = RowGroupPart(self.footer, self.footer.groups[group], None, self.deleted, is_typed=True)
        columns = self._columns(ids)
        spans = self.footer.spans(group, columns)
        found = read_batches(part, columns, spans, await self._files.read_spans(self._key, spans))
        return [picked(batch, kept) if kept is not None else batch for batch, _, kept in found]

    async def whole_rows(self, group: int, columns: tuple[Column, ...]) -> list[Any]:
        """Returns the live rows with all of these columns."""
        part = RowGroupPart(self.footer, self.footer.groups[group], None, self.deleted, is_typed=True)
        top_level = {number: path for number, path in self.footer.paths.items() if len(path) == 1}
        spans = self.footer.spans(group, top_level)
        found = read_batches(part, top_level, spans, await self._files.read_spans(self._key, spans))
        batches = [(project_columns(batch, columns), kept) for _, batch, kept in found]
        return [picked(batch, kept) if kept is not None else batch for batch, kept in batches]

    async def read_spans(self, spans: Sequence[Span]) -> list[Buffer]:
        return await self._files.read_spans(self._key, spans)

    async def body(self) -> Buffer:
        """Returns the whole file."""
        return await self._files.body(self._key)

    def _columns(self, ids: Sequence[int]) -> Mapping[int, tuple[str, ...]]:
        return {field_id: self.footer.paths[field_id] for field_id in ids if field_id in self.footer.paths}


def times_of(batch: Any) -> Longs:
    """Returns timestamps in milliseconds. A row without a timestamp gets the maximum, so that it never expires."""
    stream = batch.column(STREAM)
    times = stream.field("timestamp")
    found = numbers(times, 0) // 1000
    if times.null_count:
        null = np.asarray(times.is_null())
        found[null] = numbers(stream.field("timestamp_ms"), 2**63 - 1)[null]
    return found


def cast_rows(batches: Sequence[Any], columns: tuple[Column, ...]) -> list[Any]:
    """Casts rows to the types from which files are written."""
    if not batches:
        return []
    cast: list[Any] = pa.Table.from_batches(batches).cast(arrow_schema(columns)).to_batches()
    return [batch for batch in cast if batch.num_rows]
