"""A file of a table, read in a worker as far as it is needed: its footer, then some columns of one row group after the
other, then the rows. Deletes are applied.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.locations import Locations
from lakestream.catalog.topic_layout import COLUMNS, RAW_VALUE_ID, SCHEMA_ID, STREAM, VALUE_ID
from lakestream.data.table.arrow import arrow_schema
from lakestream.data.table.compiled import Longs
from lakestream.data.table.conform import conformed
from lakestream.data.table.deletes import joined, read_positions
from lakestream.data.table.footers import TAIL_BYTES, Footer, footer_size, read_footer
from lakestream.data.table.groups import Part, read_batches
from lakestream.data.table.located import numbers
from lakestream.data.table.picking import picked
from lakestream.errors import Corrupt, Missing, OutOfRange
from lakestream.model import Buffer, Span
from lakestream.pipeline.maintenance.tasks import Source
from lakestream.schemas.columns import Column, leaf_ids
from lakestream.storage.object_store import ObjectStore

KEY_ID: Final = next(column.field_id for column in COLUMNS[1].fields if column.name == "key")
VALUES: Final = (VALUE_ID, SCHEMA_ID, RAW_VALUE_ID)
"""A row that has nothing in any of these has no value."""
TIMES: Final = tuple(
    column.field_id for column in COLUMNS[1].fields if column.name in ("offset", "timestamp", "timestamp_ms")
)


class TableFiles:
    """Of one task: delete files are read once."""

    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        self._objects = objects
        self._locations = locations
        self._positions: dict[str, dict[str, Longs]] = {}

    async def open(self, source: Source) -> "TableFile":
        """Corrupt: it is damaged, or gone."""
        key = self._locations.key_of(source.location)
        tail = await self._read(key, [Span(max(0, source.size - TAIL_BYTES), source.size)])
        if (needed := footer_size(tail[0], source.location)) > len(tail[0]):
            tail = await self._read(key, [Span(max(0, source.size - needed), source.size)])
        footer = read_footer(tail[0], source.size, source.location)
        return TableFile(self, key, footer, await self._deleted(source))

    async def body(self, key: str) -> Buffer:
        return await self._objects.get(key)

    async def _deleted(self, source: Source) -> Longs | None:
        found = []
        for location in source.deletes:
            if location not in self._positions:
                body = await self._objects.get(self._locations.key_of(location))
                self._positions[location] = read_positions(body, location)
            positions = self._positions[location].get(source.location)
            if positions is not None:
                found.append(positions)
        return joined(found)

    async def _read(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._objects.get_ranges(key, spans)
        except (Missing, OutOfRange) as error:
            raise Corrupt(f"{key} is gone or was cut off ({error})") from error

    async def read_spans(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        return await self._read(key, spans)


class TableFile:
    def __init__(self, files: TableFiles, key: str, footer: Footer, deleted: Longs | None) -> None:
        self._files = files
        self._key = key
        self.footer = footer
        self.deleted = deleted
        """Places of rows that count no more."""

    def has_only(self, columns: tuple[Column, ...]) -> bool:
        """No others than these: written anew with them, it loses nothing."""
        return self.footer.leaf_ids() <= leaf_ids(columns)

    async def rows(self, group: int, ids: Sequence[int]) -> list[Any]:
        """Record batches with our names for things, of the rows that count."""
        part = Part(self.footer, self.footer.groups[group], None, self.deleted, is_typed=True)
        columns = self._columns(ids)
        spans = self.footer.spans(group, columns)
        found = read_batches(part, columns, spans, await self._files.read_spans(self._key, spans))
        return [picked(batch, kept) if kept is not None else batch for batch, _, kept in found]

    async def whole_rows(self, group: int, columns: tuple[Column, ...]) -> list[Any]:
        """The same with all of these columns."""
        part = Part(self.footer, self.footer.groups[group], None, self.deleted, is_typed=True)
        wanted = {number: path for number, path in self.footer.paths.items() if len(path) == 1}
        spans = self.footer.spans(group, wanted)
        found = read_batches(part, wanted, spans, await self._files.read_spans(self._key, spans))
        batches = [(conformed(there, columns), kept) for _, there, kept in found]
        return [picked(batch, kept) if kept is not None else batch for batch, kept in batches]

    async def read_spans(self, spans: Sequence[Span]) -> list[Buffer]:
        return await self._files.read_spans(self._key, spans)

    async def body(self) -> Buffer:
        """All of it."""
        return await self._files.body(self._key)

    def _columns(self, ids: Sequence[int]) -> Mapping[int, tuple[str, ...]]:
        return {field_id: self.footer.paths[field_id] for field_id in ids if field_id in self.footer.paths}


def times_of(batch: Any) -> Longs:
    """In milliseconds. Of a row without a time: above all others, so that it is never too old."""
    stream = batch.column(STREAM)
    times = stream.field("timestamp")
    found = numbers(times, 0) // 1000
    if times.null_count:
        null = np.asarray(times.is_null())
        found[null] = numbers(stream.field("timestamp_ms"), 2**63 - 1)[null]
    return found


def laid_out(batches: Sequence[Any], columns: tuple[Column, ...]) -> list[Any]:
    """In the types that files are written from."""
    if not batches:
        return []
    found: list[Any] = pa.Table.from_batches(batches).cast(arrow_schema(columns)).to_batches()
    return [batch for batch in found if batch.num_rows]
