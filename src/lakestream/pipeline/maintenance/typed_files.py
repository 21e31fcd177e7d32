"""Files of a typed table whose values may be typed anew: for who repairs them (repair.py), and for who only looks
(dead_letters.py). Pure, but for the listing.
"""

from collections.abc import Iterable

from lakestream.catalog.bound_columns import bound_ids
from lakestream.catalog.catalog import LoadedTable
from lakestream.catalog.errors import Unsupported
from lakestream.catalog.listing import POSITION_DELETES, Listing, Listings, LiveFile
from lakestream.catalog.rewrite import ROW_IDS_SINCE
from lakestream.catalog.shapes import schema_of
from lakestream.pipeline.maintenance.tasks import Source
from lakestream.schemas.columns import columns_of, inner_columns


async def checked_listing(listings: Listings, table: LoadedTable) -> Listing:
    """Unsupported: its rows cannot be found, or have to stay where they are."""
    listing = await listings.of_main(table.metadata)
    if table.metadata["format-version"] >= ROW_IDS_SINCE:
        raise Unsupported("the table is of format v3: its rows have ids, and are left where they are")
    if any(file.content != POSITION_DELETES or not file.is_parquet for file in listing.deletes):
        raise Unsupported("rows were deleted by equality: CALL system.rewrite_data_files first")
    return listing


def is_told(file: LiveFile) -> bool:
    """What others wrote without a word about its offsets is left: nobody could tell whether what replaces it is the
    same."""
    return file.partition >= 0 and file.offset_first is not None and file.offset_last is not None


def untold(files: Iterable[LiveFile]) -> list[str]:
    """Those that do not say it, in words."""
    return [
        f"{file.location} does not say which offsets it has: CALL system.rewrite_data_files, then repair again"
        for file in files
        if not is_told(file)
    ]


def source_of(file: LiveFile, listing: Listing) -> Source:
    deletes = [
        one.location
        for one in listing.deletes
        if one.about in (None, file.location) and one.sequence_number >= file.sequence_number
    ]
    return Source(file.location, file.size, file.offset_first or 0, file.offset_last or 0, False, tuple(deletes))


def own_ids(table: LoadedTable) -> tuple[int, ...]:
    """Of the columns that values and keys are in, with the one that those of keys are inside of, whatever it is
    called by now."""
    bound = bound_ids(table.metadata)
    around = (
        column.field_id
        for column in columns_of(schema_of(table.metadata))
        if any(inner.field_id in bound for inner in inner_columns(column.type))
    )
    return tuple(bound | set(around))
