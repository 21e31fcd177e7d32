"""Are the rows of a file in the partition that its manifest says? For `lakestream doctor`, below examine_look.py.

Engines that filter skip files by these values, and never open one whose value lies: its rows are there, and nobody who
asks for them by that column finds them. Computed anew from the rows, with the transforms that writers use too
(transforms.py; these are held against pyiceberg's in their tests). Blocks: runs in threads.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.file_layout import Cut
from lakestream.catalog.parquet_names import file_columns
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_layout import OFFSET_ID, PARTITION_ID, STREAM
from lakestream.data.table.conform import conformed
from lakestream.data.table.examine_files import NamedFile, Trouble
from lakestream.data.table.examine_rows import GroupBytes
from lakestream.schemas.columns import Column, all_columns, columns_of, pruned
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import IDENTITY, Transform

DEFAULTS_SINCE: Final = 3
"""The version of the table's format from which on a column that a file lacks may be something else than null in it."""


class Partitioned(NamedTuple):
    """A field of a partition spec that rows can be held against."""

    field_id: int
    name: str
    cut: Cut


class Misplaced(NamedTuple):
    """A row, and what it should have in common with the others of its file."""

    field: Partitioned
    offset: int
    value: Any


def partitioned_by(metadata: Json, spec_id: int) -> list[Partitioned]:
    """Without the stream's partition, which is looked at with the offsets; without what is null whatever the rows are,
    and what cannot be computed, since its column is gone or its transform is none that we know."""
    kinds = {one.field_id: one.type for one in all_columns(columns_of(schema_of(metadata)))}
    spec: Json = next((one for one in metadata["partition-specs"] if one["spec-id"] == spec_id), {"fields": []})
    found = []
    for field in spec["fields"]:
        source, transform = field.get("source-id", 0), Transform.of(field["transform"])
        kind = kinds.get(source)
        if transform is None or transform.name == "void" or (source, transform) == (PARTITION_ID, IDENTITY):
            continue
        if isinstance(kind, Primitive) and transform.takes(kind):
            found.append(Partitioned(field["field-id"], field["name"], Cut(source, kind, transform)))
    return found


def sources_of(fields: Sequence[Partitioned]) -> tuple[int, ...]:
    """The columns to read, by field id; with the offsets, since a file may have none of the others."""
    return (OFFSET_ID, *(field.cut.source_id for field in fields))


def first_misplaced(
    read: GroupBytes, metadata: Json, file: NamedFile, fields: Sequence[Partitioned]
) -> Misplaced | None:
    """Of the rows of a row group."""
    columns, said = pruned(file_columns(metadata), set(sources_of(fields))), dict(file.values)
    fields = [field for field in fields if field.cut.source_id in read.footer.paths or _is_null(metadata, field)]
    for batch in read.batches():
        rows = pa.Table.from_batches([conformed(batch, columns)])
        for field in fields:
            if (found := _misplaced(rows, columns, field, said.get(field.field_id))) is not None:
                return found
    return None


def _is_null(metadata: Json, field: Partitioned) -> bool:
    """Whether a column that the file lacks is null in it. What rows are partitioned by as it is may have been left out,
    as in files that Spark's `add_files` brings in: its value is then the one that the partition says."""
    return field.cut.transform != IDENTITY and metadata["format-version"] < DEFAULTS_SINCE


def _misplaced(rows: Any, columns: tuple[Column, ...], field: Partitioned, said: Any) -> Misplaced | None:
    # Here and not above: most tables are by the stream's partition alone, and have no use for the kernels of it.
    from lakestream.data.table.splitting import grouped

    codes, groups = grouped(rows, columns, [field.cut], 0)
    kind = field.cut.result
    wrong = [code for code, (value,) in enumerate(groups) if _plain(kind, value) != _plain(kind, said)]
    places = np.flatnonzero(np.isin(codes, wrong))
    if not places.size:
        return None
    place = int(places[0])
    offset = rows.column(STREAM).chunk(0).field("offset")[place].as_py()
    return Misplaced(field, offset, groups[int(codes[place])][0])


def _plain(kind: Primitive, value: Any) -> Any:
    """What is equal if it is the same: decimals may have been written with more bytes."""
    if kind.kind is Kind.DECIMAL and value is not None:
        return int.from_bytes(value, "big", signed=True)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def misplaced(file: NamedFile, found: Misplaced) -> Iterator[Trouble]:
    said, name = dict(file.values).get(found.field.field_id), found.field.name
    yield Trouble(
        "partition",
        file.location,
        f"{file.location} is in the partition {name}={_shown(said)}, but the row at offset {found.offset} is of"
        f" {name}={_shown(found.value)}: who filters by it does not find that row; have the file written anew"
        " (CALL system.rewrite_data_files with rewrite-all)",
    )


def _shown(value: Any) -> str:
    return "null" if value is None else value.hex() if isinstance(value, bytes) else str(value)
