"""Reads footers, row groups and deletes of a table's files. Used by snapshot_checks.py.

Sizes are those in the manifests: a file that is shorter is damaged.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from lakestream.aio.threads import Run
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.locations import TableFolder
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.read import parquet_footer
from lakestream.data.table.read.parquet_footer import Footer
from lakestream.data.table.read.position_deletes import read_positions, read_vector
from lakestream.data.verify import partition_checks, row_checks
from lakestream.data.verify.file_checks import RESTORE, NamedFile
from lakestream.data.verify.partition_checks import Misplaced, PartitionField
from lakestream.errors import Corrupt, OutOfRange
from lakestream.model import Buffer, Span

FOOTERS_MAX: Final = 256
DELETES_MAX: Final = 64


class TableFileReader:
    def __init__(self, catalog: Catalog, folder: TableFolder, run: Run) -> None:
        self._catalog = catalog
        self._folder = folder
        self._run = run
        self._footers: dict[str, Footer] = {}
        self._deleted: dict[str, Mapping[str, Longs]] = {}

    async def footer(self, file: NamedFile) -> Footer:
        if not file.is_parquet:
            raise Corrupt(f"{file.location} is not a Parquet file: brokers read only Parquet files of a table")
        if (cached := self._footers.get(file.location)) is not None:
            return cached
        size = min(file.size, parquet_footer.TAIL_BYTES)
        (tail,) = await self._fetch(file.location, [Span(file.size - size, file.size)])
        needed = parquet_footer.footer_size(tail, file.location)
        if needed > file.size:
            raise Corrupt(f"{file.location} is damaged: its footer length exceeds the file; {RESTORE}")
        if needed > len(tail):
            (tail,) = await self._fetch(file.location, [Span(file.size - needed, file.size)])
        footer = await self._run(partial(parquet_footer.read_footer, tail, file.size, file.location))
        if len(self._footers) >= FOOTERS_MAX:
            self._footers.clear()
        self._footers[file.location] = footer
        return footer

    async def row_offsets(self, footer: Footer, group: int) -> row_checks.RowOffsets:
        """Reads partition and offset of every row of a row group."""
        columns = row_checks.columns_to_read(footer, row_checks.ROW_OFFSET_IDS)
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(row_checks.read_row_offsets, bytes_of))

    async def misplaced(
        self, footer: Footer, group: int, metadata: Json, file: NamedFile, fields: Sequence[PartitionField]
    ) -> Misplaced | None:
        """Finds the first row of a row group that belongs to another partition of the table."""
        columns = row_checks.columns_to_read(footer, partition_checks.sources_of(fields))
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(partition_checks.first_misplaced, bytes_of, metadata, file, fields))

    async def records(
        self, footer: Footer, group: int, partition: int, window: Span, deletes: Sequence[NamedFile]
    ) -> Any:
        """Reads the rows of a row group that are not deleted, as `row_checks.PLAIN`."""
        columns = row_checks.columns_to_read(footer, row_checks.RECORD_IDS)
        none = np.empty(0, np.int64)
        positions = [(await self.deletes(one)).get(footer.location, none) for one in deletes]
        deleted = np.unique(np.concatenate([none, *positions]))
        bytes_of = await self._bytes(footer, group, columns)
        return await self._run(partial(row_checks.read_records, bytes_of, partition, window, deleted))

    async def deletes(self, file: NamedFile) -> Mapping[str, Longs]:
        """Returns the positions of the rows that a file deletes, by data file."""
        key = f"{file.location}@{file.blob}"
        if (cached := self._deleted.get(key)) is not None:
            return cached
        positions = await self._read_deletes(file)
        if len(self._deleted) >= DELETES_MAX:
            self._deleted.clear()
        self._deleted[key] = positions
        return positions

    async def _read_deletes(self, file: NamedFile) -> Mapping[str, Longs]:
        if file.is_parquet:
            (body,) = await self._fetch(file.location, [Span(0, file.size)])
            return await self._run(partial(read_positions, body, file.location))
        if file.blob is None or file.about is None:
            raise Corrupt(f"{file.location} is neither a Parquet position delete file nor a deletion vector")
        (blob,) = await self._fetch(file.location, [file.blob])
        return {file.about: await self._run(partial(read_vector, blob, file.location))}

    async def _bytes(self, footer: Footer, group: int, columns: Mapping[int, tuple[str, ...]]) -> row_checks.GroupBytes:
        if footer.body is not None:
            return row_checks.GroupBytes(footer, group, columns, [Span(0, footer.file_size)], [footer.body])
        spans = footer.spans(group, columns)
        return row_checks.GroupBytes(footer, group, columns, spans, await self._fetch(footer.location, spans))

    async def _fetch(self, location: str, spans: Sequence[Span]) -> list[Buffer]:
        try:
            return await self._catalog.objects.get_ranges(self._folder.key_of(location), spans)
        except OutOfRange as error:
            raise Corrupt(f"{location} is shorter than its manifest states ({error}); {RESTORE}") from error
