"""Footers, row groups and deletes of a table's files, out of the storage: below examine_look.py.

Only plumbing. Sizes are those that manifests say: a file that is shorter is damaged.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.shapes import Json
from lakestream.data.table import examine_partitions, examine_rows, footers
from lakestream.data.table.compiled import Longs
from lakestream.data.table.deletes import read_positions, read_vector
from lakestream.data.table.examine_files import RESTORE, NamedFile
from lakestream.data.table.examine_partitions import Misplaced, Partitioned
from lakestream.data.table.footers import Footer
from lakestream.data.table.threads import Run
from lakestream.errors import Corrupt, OutOfRange
from lakestream.model import Buffer, Span

FOOTERS_KEPT: Final = 256
DELETES_KEPT: Final = 64


class Reading:
    def __init__(self, catalog: Catalog, run: Run) -> None:
        self._catalog = catalog
        self._run = run
        self._footers: dict[str, Footer] = {}
        self._deleted: dict[str, Mapping[str, Longs]] = {}

    async def footer(self, file: NamedFile) -> Footer:
        if not file.is_parquet:
            raise Corrupt(f"{file.location} is no Parquet file: tables of topics are read from Parquet only")
        if (known := self._footers.get(file.location)) is not None:
            return known
        size = min(file.size, footers.TAIL_BYTES)
        (tail,) = await self._fetch(file.location, [Span(file.size - size, file.size)])
        needed = footers.footer_size(tail, file.location)
        if needed > file.size:
            raise Corrupt(f"{file.location} is damaged: it says that its footer is larger than the file; {RESTORE}")
        if needed > len(tail):
            (tail,) = await self._fetch(file.location, [Span(file.size - needed, file.size)])
        footer = await self._run(partial(footers.read_footer, tail, file.size, file.location))
        if len(self._footers) >= FOOTERS_KEPT:
            self._footers.clear()
        self._footers[file.location] = footer
        return footer

    async def places(self, footer: Footer, group: int) -> examine_rows.Places:
        """Partition and offset of every row of a row group."""
        columns = examine_rows.wanted(footer, examine_rows.PLACE_IDS)
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(examine_rows.read_places, bytes_of))

    async def misplaced(
        self, footer: Footer, group: int, metadata: Json, file: NamedFile, fields: Sequence[Partitioned]
    ) -> Misplaced | None:
        """The first row of a row group that belongs into another partition of the table."""
        columns = examine_rows.wanted(footer, examine_partitions.sources_of(fields))
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(examine_partitions.first_misplaced, bytes_of, metadata, file, fields))

    async def records(
        self, footer: Footer, group: int, partition: int, window: Span, deletes: Sequence[NamedFile]
    ) -> Any:
        """The rows of a row group that count, as `examine_rows.PLAIN`."""
        columns = examine_rows.wanted(footer, examine_rows.RECORD_IDS)
        none = np.empty(0, np.int64)
        found = [(await self.deletes(one)).get(footer.location, none) for one in deletes]
        deleted = np.unique(np.concatenate([none, *found]))
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(examine_rows.read_records, bytes_of, partition, window, deleted))

    async def deletes(self, file: NamedFile) -> Mapping[str, Longs]:
        """By data file: places of the rows that it deletes."""
        key = f"{file.location}@{file.blob}"
        if (known := self._deleted.get(key)) is not None:
            return known
        found = await self._read_deletes(file)
        if len(self._deleted) >= DELETES_KEPT:
            self._deleted.clear()
        self._deleted[key] = found
        return found

    async def _read_deletes(self, file: NamedFile) -> Mapping[str, Longs]:
        if file.is_parquet:
            (body,) = await self._fetch(file.location, [Span(0, file.size)])
            return await self._run(partial(read_positions, body, file.location))
        if file.blob is None or file.about is None:
            raise Corrupt(f"{file.location} is neither a Parquet file of deleted positions nor a deletion vector")
        (blob,) = await self._fetch(file.location, [file.blob])
        return {file.about: await self._run(partial(read_vector, blob, file.location))}

    async def _bytes(
        self, footer: Footer, group: int, columns: Mapping[int, tuple[str, ...]]
    ) -> examine_rows.GroupBytes:
        if footer.body is not None:
            return examine_rows.GroupBytes(footer, group, columns, [Span(0, footer.file_size)], [footer.body])
        spans = footer.spans(group, columns)
        return examine_rows.GroupBytes(footer, group, columns, spans, await self._fetch(footer.location, spans))

    async def _fetch(self, location: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._catalog.objects.get_ranges(self._catalog.locations.key_of(location), spans)
        except OutOfRange as error:
            raise Corrupt(f"{location} is shorter than its manifest says ({error}); {RESTORE}") from error
