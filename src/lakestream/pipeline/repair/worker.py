"""Converts the values of a file again, in a worker, as if they were read from the log now.

    rows → produced bytes → record batches (file_rows.py) → values_to_columns.py → Parquet

This is the path of a fetch followed by that of a move, so the result is the same as if the schema had been registered
before the first move: the same offsets, keys, headers and timestamps, and columns instead of bytes where the columns
restore the bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lakestream.data.table.write.parquet_writer import ParquetSettings, WrittenFile
from lakestream.data.table.write.partitioned_writer import write_files
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.errors import Corrupt
from lakestream.pipeline.maintenance.table_file import TableFile
from lakestream.pipeline.maintenance.tasks import Repair, RepairSchemasMissing
from lakestream.pipeline.repair.file_rows import (
    BEFORE,
    by_offset,
    filled,
    foreign_column,
    produced,
    records_of,
    rows_with_bytes,
)
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionErrors, SchemaMode, SchemasMissingError


@dataclass(frozen=True, slots=True)
class ConvertedFile:
    written: tuple[WrittenFile, ...] = ()
    """Empty if the conversion would improve no row."""
    rows_before: int = 0
    rows_after: int = 0
    errors: tuple[ConversionErrors, ...] = ()


async def reconvert(file: TableFile, task: Repair, place: Callable[[int], str]) -> ConvertedFile | RepairSchemasMissing:
    """Returns the replacement of a file, or the schemas that it lacks.

    Corrupt: the file is damaged, or has foreign columns, which would be lost.
    """
    before, footer = await _raw_rows(file, task), file.footer
    if not before and task.conversion.key.mode is SchemaMode.NONE:
        return ConvertedFile()
    if foreign := foreign_column(footer, task.own_ids):
        raise Corrupt(
            f"{footer.location} has the column {foreign}, which is not the stream's own: repair skips the file"
        )
    groups = [await produced(file, group, task.writers) for group in range(len(footer.groups))]
    rows = by_offset([part for parts in groups for part in parts])
    converter = ValueConverter(task.columns, task.conversion)
    settings = replace(ParquetSettings.of(dict(task.writing.properties)), file_bytes_max=task.target)
    full = _FilledRows(_own_columns(task))
    try:
        again = full.counted(converter.convert(records_of(rows, footer.location, task.partition)))
        written = tuple(write_files(again, place, settings, converter.columns, task.writing.layout, task.partition))
    except SchemasMissingError as missing:
        return RepairSchemasMissing(missing.schemas, missing.inferred)
    after = converter.stats.unconverted
    keeps = after >= before and full.rows <= await _full_rows(file, task)
    return ConvertedFile(() if keeps else written, before, after, converter.stats.errors())


async def _raw_rows(file: TableFile, task: Repair) -> int:
    has_schema, count = task.conversion.value.mode is not SchemaMode.NONE, 0
    for group in range(len(file.footer.groups)):
        for batch in await file.rows(group, BEFORE):
            count += int(np.count_nonzero(rows_with_bytes(batch, has_schema=has_schema)))
    return count


async def _full_rows(file: TableFile, task: Repair) -> int:
    full = _FilledRows(_own_columns(task))
    for group in range(len(file.footer.groups)):
        for _ in full.counted(await file.whole_rows(group, full.columns)):
            pass
    return full.rows


def _own_columns(task: Repair) -> tuple[Column, ...]:
    return tuple(column for column in task.columns if column.field_id in task.own_ids)


@dataclass(slots=True)
class _FilledRows:
    """Counts rows with values in their columns; value and key count separately."""

    columns: tuple[Column, ...]
    rows: int = 0

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self.rows += sum(int(np.count_nonzero(one)) for one in filled(batch, self.columns))
            yield batch
