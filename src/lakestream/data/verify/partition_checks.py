"""Checks that the rows of a file have the partition values in its manifest entry. Used by snapshot_checks.py.

Engines skip files by these values: with a wrong value, a filter on that column misses the rows. The values are computed
from the rows, with the transforms that writers use (partition_transforms.py, tested against pyiceberg's). Blocks: runs
in threads.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.catalog.table_metadata.json_model import Json, schema_of
from lakestream.catalog.topic_table.columns import OFFSET_ID, PARTITION_ID, STREAM
from lakestream.catalog.topic_table.field_names import file_columns
from lakestream.catalog.topic_table.file_layout import TransformedColumn
from lakestream.data.table.arrow.projection import project_columns
from lakestream.data.verify.file_checks import NamedFile, Problem
from lakestream.data.verify.row_checks import GroupBytes
from lakestream.schemas.columns import Column, all_columns, columns_of, pruned
from lakestream.schemas.layout_terms import IDENTITY, Transform
from lakestream.schemas.types import Kind, Primitive

DEFAULTS_SINCE: Final = 3
"""First format version in which a column that a file lacks can have a default other than null."""


class PartitionField(NamedTuple):
    """A field of a partition spec whose values can be computed from rows."""

    field_id: int
    name: str
    cut: TransformedColumn


class Misplaced(NamedTuple):
    """A row in a file of another partition, and the row's own partition value."""

    field: PartitionField
    offset: int
    value: Any


def partitioned_by(metadata: Json, spec_id: int) -> list[PartitionField]:
    """Returns the fields of a partition spec to check. Not the topic partition, which is checked with the offsets; not
    void fields, and none that cannot be computed because the column was dropped or the transform is unknown."""
    kinds = {one.field_id: one.type for one in all_columns(columns_of(schema_of(metadata)))}
    spec: Json = next((one for one in metadata["partition-specs"] if one["spec-id"] == spec_id), {"fields": []})
    fields = []
    for field in spec["fields"]:
        source, transform = field.get("source-id", 0), Transform.of(field["transform"])
        kind = kinds.get(source)
        if transform is None or transform.name == "void" or (source, transform) == (PARTITION_ID, IDENTITY):
            continue
        if isinstance(kind, Primitive) and transform.accepts(kind):
            fields.append(PartitionField(field["field-id"], field["name"], TransformedColumn(source, kind, transform)))
    return fields


def sources_of(fields: Sequence[PartitionField]) -> tuple[int, ...]:
    """Returns the field ids of the columns to read; with the offsets, since a file may have none of the others."""
    return (OFFSET_ID, *(field.cut.source_id for field in fields))


def first_misplaced(
    read: GroupBytes, metadata: Json, file: NamedFile, fields: Sequence[PartitionField]
) -> Misplaced | None:
    """Finds the first row of a row group with another partition value than its file."""
    columns, values = pruned(file_columns(metadata), set(sources_of(fields))), dict(file.values)
    fields = [field for field in fields if field.cut.source_id in read.footer.paths or _is_null(metadata, field)]
    for batch in read.batches():
        rows = pa.Table.from_batches([project_columns(batch, columns)])
        for field in fields:
            if (row := _misplaced(rows, columns, field, values.get(field.field_id))) is not None:
                return row
    return None


def _is_null(metadata: Json, field: PartitionField) -> bool:
    """Returns whether a column that the file lacks is null in it. A column with an identity transform may be left out,
    as in files added with Spark's `add_files`: its value is then the partition value."""
    return field.cut.transform != IDENTITY and metadata["format-version"] < DEFAULTS_SINCE


def _misplaced(rows: Any, columns: tuple[Column, ...], field: PartitionField, expected: Any) -> Misplaced | None:
    # Imported here: most tables are partitioned by topic partition only, and do not need its kernels.
    from lakestream.data.table.write.partitioned_writer import grouped

    codes, groups = grouped(rows, columns, [field.cut], 0)
    kind = field.cut.result
    wrong = [code for code, (value,) in enumerate(groups) if _plain(kind, value) != _plain(kind, expected)]
    indices = np.flatnonzero(np.isin(codes, wrong))
    if not indices.size:
        return None
    index = int(indices[0])
    offset = rows.column(STREAM).chunk(0).field("offset")[index].as_py()
    return Misplaced(field, offset, groups[int(codes[index])][0])


def _plain(kind: Primitive, value: Any) -> Any:
    """Normalizes a value for comparison: decimals may have been written with more bytes."""
    if kind.kind is Kind.DECIMAL and value is not None:
        return int.from_bytes(value, "big", signed=True)
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def misplaced(file: NamedFile, row: Misplaced) -> Iterator[Problem]:
    value, name = dict(file.values).get(row.field.field_id), row.field.name
    yield Problem(
        "partition",
        file.location,
        f"{file.location} is in the partition {name}={_shown(value)}, but the row at offset {row.offset} is of"
        f" {name}={_shown(row.value)}: queries that filter by it miss that row; rewrite the file"
        " (CALL system.rewrite_data_files with rewrite-all)",
    )


def _shown(value: Any) -> str:
    return "null" if value is None else value.hex() if isinstance(value, bytes) else str(value)
