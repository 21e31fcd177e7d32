"""Rows of a file of a typed table: what they have in it, and the records that they were when they were produced.

Below repairing.py, which types these records anew, and looking.py, which sees what would become of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lakestream.catalog.topic_layout import (
    FIRST_FREE_ID,
    OFFSET_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    STREAM,
    VALUE,
    VALUE_ID,
)
from lakestream.data.table.decode import decode
from lakestream.data.table.encode import encode_rows
from lakestream.data.table.footers import Footer
from lakestream.data.table.groups import Part, read_rows, record_columns, sorted_rows
from lakestream.data.table.heads import Source
from lakestream.data.table.rows import Rows
from lakestream.errors import Corrupt
from lakestream.model import Span
from lakestream.pipeline.maintenance.files import TableFile
from lakestream.schemas.columns import Column
from lakestream.schemas.matching import KEY
from lakestream.schemas.writers import NoWriter, Writer

BEFORE: Final = (OFFSET_ID, SCHEMA_ID, RAW_VALUE_ID, VALUE_ID)
"""The columns that tell which rows keep their bytes."""
EVERYTHING: Final = Span(0, 2**63 - 1)
STEP: Final = 32_768
"""Rows that are made records of at a time, where they are not as they lie in the file."""

Mask = NDArray[np.bool_]


class Filled(NamedTuple):
    """Rows that have something in the columns of their values, and in that of their keys."""

    values: Mask
    keys: Mask


def keep_bytes(batch: Any, *, has_schema: bool) -> Mask:
    """Rows that have bytes, in whichever place. Where values have no schema, it is theirs to have them in their
    column."""
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
    """One that is not of these; empty: there is none."""
    foreign = {one for one in footer.paths if one >= FIRST_FREE_ID} - set(own_ids)
    return ".".join(footer.paths[min(foreign)]) if foreign else ""


async def produced(file: TableFile, group: int, writers: Sequence[Writer]) -> list[Rows]:
    """The rows of a row group, in its order, with the values that were produced. Corrupt: nobody can tell."""
    part = Part(file.footer, file.footer.groups[group], None, file.deleted, is_typed=True)
    known = {writer.number: writer for writer in writers}
    columns = record_columns(part, known)
    spans = file.footer.spans(group, columns)
    bodies = await file.read_spans(spans)
    try:
        return read_rows(part, columns, spans, bodies, EVERYTHING, known)
    except NoWriter as error:
        raise Corrupt(f"{file.footer.location}: {error}, so nobody knows what its rows were") from error


def by_offset(rows: list[Rows]) -> list[Rows]:
    """As ours lie in their files; whoever wrote this one may have sorted it by something else."""
    offsets = np.concatenate([part.offsets for part in rows]) if rows else np.empty(0, np.int64)
    if (np.diff(offsets) > 0).all():
        return rows
    whole = sorted_rows(rows)
    return [whole.picked(np.arange(start, min(start + STEP, len(whole)))) for start in range(0, len(whole), STEP)]


def records_of(rows: Sequence[Rows], location: str, partition: int) -> Iterator[Any]:
    """As `decode.py` makes them of what comes out of a log."""
    for part in rows:
        if len(part):
            made = encode_rows(part, name=location)
            yield from decode([Source(location, made.data, made.starts, made.ends, made.base_offsets)], partition)
