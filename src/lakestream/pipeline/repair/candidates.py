"""Selects files whose values may be converted again, for a repair (repair.py) and for its dry run (dead_letters)."""

from collections.abc import Iterable

from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.operations.live_files import LiveFileReader, LiveFiles
from lakestream.catalog.operations.rewrite_files import ROW_IDS_SINCE
from lakestream.catalog.table_metadata.json_model import schema_of
from lakestream.catalog.topic_table.live_file import POSITION_DELETES, LiveFile
from lakestream.catalog.topic_table.properties import bound_ids
from lakestream.pipeline.maintenance.plan import may_delete_from
from lakestream.pipeline.maintenance.tasks import SourceFile
from lakestream.schemas.columns import columns_of, inner_columns


async def checked_listing(listings: LiveFileReader, table: LoadedTable) -> LiveFiles:
    """Lists the live files. Unsupported: rows of this table cannot be rewritten."""
    listing = await listings.of_main(table.metadata)
    if table.metadata["format-version"] >= ROW_IDS_SINCE:
        raise Unsupported("the table has format v3 with row ids: its files are not rewritten")
    if any(file.content != POSITION_DELETES or not file.is_parquet for file in listing.deletes):
        raise Unsupported("the table has equality deletes: run CALL system.rewrite_data_files first")
    return listing


def has_bounds(file: LiveFile) -> bool:
    """Whether a file has bounds of its offsets. Without them, a rewrite could not be checked against the file."""
    is_bounded = file.offset_first is not None and file.offset_last is not None
    return file.partition >= 0 and is_bounded and not file.offsets_null


def unbounded(files: Iterable[LiveFile]) -> list[str]:
    """Returns an error for each file without bounds of its offsets."""
    return [_bounds_error(file) for file in files if file.has_records and not has_bounds(file)]


def _bounds_error(file: LiveFile) -> str:
    if file.offsets_null:
        return f"{file.location} has {file.offsets_null} rows without offsets: delete them as lakestream doctor shows"
    return f"{file.location} has no bounds of its offsets: run CALL system.rewrite_data_files, then repair again"


def source_of(file: LiveFile, listing: LiveFiles) -> SourceFile:
    deletes = [one.location for one in listing.deletes if may_delete_from(one, file)]
    return SourceFile(file.location, file.size, file.offset_first or 0, file.offset_last or 0, False, tuple(deletes))


def own_ids(table: LoadedTable) -> tuple[int, ...]:
    """Returns the ids of the columns of values and keys, and of the struct column that contains those of keys."""
    bound = bound_ids(table.metadata)
    parents = (
        column.field_id
        for column in columns_of(schema_of(table.metadata))
        if any(inner.field_id in bound for inner in inner_columns(column.type))
    )
    return tuple(bound | set(parents))
