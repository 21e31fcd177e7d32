"""Reads the rows of a file of a table with schemas, and restores the records as they were produced.

Used by worker.py, which converts these records again, and by file_scan.py, which checks what the result would be.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakestream.catalog.topic_table.columns import (
    FIRST_FREE_ID,
    OFFSET_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    STREAM,
    VALUE,
    VALUE_ID,
)
from lakestream.data.table.arrow.batch_encoder import encode_rows
from lakestream.data.table.arrow.row_arrays import Rows
from lakestream.data.table.read.parquet_footer import Footer
from lakestream.data.table.read.row_groups import RowGroupPart, read_rows, record_columns, sorted_rows
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.errors import Corrupt
from lakestream.model import Span
from lakestream.pipeline.maintenance.table_file import TableFile
from lakestream.schemas.column_matching import KEY
from lakestream.schemas.columns import Column
from lakestream.schemas.writer_schema import UnknownWriterSchema, WriterSchema

BEFORE: Final = (OFFSET_ID, SCHEMA_ID, RAW_VALUE_ID, VALUE_ID)
"""The columns that show which rows keep their bytes."""
EVERYTHING: Final = Span(0, 2**63 - 1)
STEP: Final = 32_768
"""Rows encoded as records at a time, if they are not in the order of the file."""

Mask = NDArray[np.bool_]


class Filled(NamedTuple):
    """Masks of the rows that have a value in some value column, and in the key column."""

    values: Mask
    keys: Mask


def rows_with_bytes(batch: Any, *, has_schema: bool) -> Mask:
    """Returns which rows keep their bytes, in any column. Without a schema, bytes in `value` do not count."""
    raw = batch.column(STREAM).field("value")
    found: Mask = np.asarray(raw.is_valid())
    if has_schema and VALUE in batch.schema.names:
        found = found | np.asarray(batch.column(VALUE).is_valid())
    return found


def filled(batch: Any, columns: Sequence[Column]) -> Filled:
    found = Filled(np.zeros(len(batch), np.bool_), np.zeros(len(batch), np.bool_))
    for column in columns:
        if column.name in batch.schema.names:
            part = found.keys if column.name == KEY else found.values
            part |= np.asarray(batch.column(column.name).is_valid())
    return found


def foreign_column(footer: Footer, own_ids: Sequence[int]) -> str:
    """Returns the path of a column with another id; empty if there is none."""
    foreign = {one for one in footer.paths if one >= FIRST_FREE_ID} - set(own_ids)
    return ".".join(footer.paths[min(foreign)]) if foreign else ""


async def produced(file: TableFile, group: int, writers: Sequence[WriterSchema]) -> list[Rows]:
    """Returns the rows of a row group, in their order, with the produced values. Corrupt: they cannot be restored."""
    part = RowGroupPart(file.footer, file.footer.groups[group], None, file.deleted, is_typed=True)
    known = {writer.number: writer for writer in writers}
    columns = record_columns(part, known)
    spans = file.footer.spans(group, columns)
    bodies = await file.read_spans(spans)
    try:
        return read_rows(part, columns, spans, bodies, EVERYTHING, known)
    except UnknownWriterSchema as error:
        raise Corrupt(f"{file.footer.location}: {error}, so its rows cannot be restored") from error


def by_offset(rows: list[Rows]) -> list[Rows]:
    """Sorts rows by offset: another engine may have sorted the file by something else."""
    offsets = np.concatenate([part.offsets for part in rows]) if rows else np.empty(0, np.int64)
    if (np.diff(offsets) > 0).all():
        return rows
    whole = sorted_rows(rows)
    return [whole.picked(np.arange(start, min(start + STEP, len(whole)))) for start in range(0, len(whole), STEP)]


def records_of(rows: Sequence[Rows], location: str, partition: int) -> Iterator[Any]:
    """Yields the rows as records, as `batch_decoder.py` decodes them from a log."""
    for part in rows:
        if len(part):
            encoded = encode_rows(part, name=location)
            yield from decode(
                [BatchSource(location, encoded.data, encoded.starts, encoded.ends, encoded.base_offsets)], partition
            )
