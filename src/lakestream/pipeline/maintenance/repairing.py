"""In a worker: the values of a file are typed anew, as if they came out of the log now.

    rows → the bytes that were produced → record batches (produced.py) → typing.py → Parquet

That is the way of a consumer and then that of a move, so what comes out is what would have come out if the schema had
been known then: the same offsets, keys, headers and times, and columns instead of bytes where they give them back.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lakestream.data.table.parquet import ParquetSettings, WrittenFile
from lakestream.data.table.splitting import write_files
from lakestream.data.typed.typing import Typist
from lakestream.errors import Corrupt
from lakestream.pipeline.maintenance.files import TableFile
from lakestream.pipeline.maintenance.produced import (
    BEFORE,
    by_offset,
    filled,
    foreign_column,
    keep_bytes,
    produced,
    records_of,
)
from lakestream.pipeline.maintenance.tasks import Repair, RepairWants
from lakestream.schemas.columns import Column
from lakestream.schemas.typing import Misfits, Mode, Wanted


@dataclass(frozen=True, slots=True)
class Retyped:
    written: tuple[WrittenFile, ...] = ()
    """Empty: nothing would be better than it is."""
    rows_before: int = 0
    rows_after: int = 0
    misfits: tuple[Misfits, ...] = ()


async def retyped(file: TableFile, task: Repair, place: Callable[[int], str]) -> Retyped | RepairWants:
    """Corrupt: it has columns of others, which would be lost, or is damaged."""
    before, footer = await _raw_rows(file, task), file.footer
    if not before and task.typing.key.mode is Mode.NONE:
        return Retyped()
    if foreign := foreign_column(footer, task.own_ids):
        raise Corrupt(f"{footer.location} has the column {foreign}, which is not the stream's own: it is left as it is")
    groups = [await produced(file, group, task.writers) for group in range(len(footer.groups))]
    rows = by_offset([part for parts in groups for part in parts])
    typist = Typist(task.columns, task.typing)
    settings = replace(ParquetSettings.of(dict(task.writing.properties)), file_bytes_max=task.target)
    full = _Full(_own_columns(task))
    try:
        again = full.counted(typist.typed(records_of(rows, footer.location, task.partition)))
        written = tuple(write_files(again, place, settings, typist.columns, task.writing.layout, task.partition))
    except Wanted as wanted:
        return RepairWants(wanted.schemas, wanted.inferred)
    after = typist.tally.raw
    keeps = after >= before and full.rows <= await _full_rows(file, task)
    return Retyped(() if keeps else written, before, after, typist.tally.misfits())


async def _raw_rows(file: TableFile, task: Repair) -> int:
    has_schema, count = task.typing.value.mode is not Mode.NONE, 0
    for group in range(len(file.footer.groups)):
        for batch in await file.rows(group, BEFORE):
            count += int(np.count_nonzero(keep_bytes(batch, has_schema=has_schema)))
    return count


async def _full_rows(file: TableFile, task: Repair) -> int:
    full = _Full(_own_columns(task))
    for group in range(len(file.footer.groups)):
        for _ in full.counted(await file.whole_rows(group, full.columns)):
            pass
    return full.rows


def _own_columns(task: Repair) -> tuple[Column, ...]:
    return tuple(column for column in task.columns if column.field_id in task.own_ids)


@dataclass(slots=True)
class _Full:
    """Counts rows that have something in their columns: those of the value, and that of the key for itself."""

    columns: tuple[Column, ...]
    rows: int = 0

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            self.rows += sum(int(np.count_nonzero(one)) for one in filled(batch, self.columns))
            yield batch
