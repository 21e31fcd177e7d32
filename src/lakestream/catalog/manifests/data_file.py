"""Descriptions of new data files, and checks of them before a commit.

`data/table/write/parquet_writer.py` creates them and `append.py` commits them. They are small, because Spark sends
thousands of them from workers to the driver.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lakestream.errors import Rejected


class FileDescription(msgspec.Struct, frozen=True):
    """A Parquet file with rows of one partition of the topic.

    Statistics are by Iceberg field id, bounds in Iceberg's single-value serialization.
    """

    location: str
    partition: int
    """Of the topic, whatever the table's partition spec is."""
    offset_first: int
    offset_last: int
    record_count: int
    size: int
    column_sizes: Mapping[int, int]
    value_counts: Mapping[int, int]
    null_counts: Mapping[int, int]
    lower_bounds: Mapping[int, bytes]
    upper_bounds: Mapping[int, bytes]
    split_offsets: Sequence[int]
    """The start of each row group."""
    spec_id: int | None = None
    """The partition spec; None: the one by `_stream.partition` alone."""
    values: tuple[Any, ...] = ()
    """The partition tuple, as manifests store it (partition_values.py)."""
    order_id: int | None = None
    """The sort order of its rows; None: they ascend by offset."""


class MovedRange(NamedTuple):
    """Offsets `[start, end)` of a partition. The files have all committed records of the range."""

    partition: int
    start: int
    end: int


def data_location(table_location: str, partition: int, offset_first: int, file_id: str) -> str:
    """Returns the location of a new file. File names sort by offset."""
    return f"{table_location}/data/partition={partition}/{offset_first:020d}-{file_id}.parquet"


def ends_of(ranges: Sequence[MovedRange], starts: Mapping[int, int]) -> dict[int, int] | None:
    """Returns the end of each partition's ranges; None if they do not follow `starts` and each other without a gap."""
    ends: dict[int, int] = {}
    for moved in sorted(ranges):
        if moved.start != ends.get(moved.partition, starts.get(moved.partition, 0)):
            return None
        ends[moved.partition] = moved.end
    return ends


def check_new_files(files: Sequence[FileDescription], ranges: Sequence[MovedRange]) -> None:
    """Raises Rejected if a file has offsets outside of the ranges, or two files have the same offsets.

    Offset ranges of files in different partitions of the table may overlap, because each row is in one of them. So may
    those of files that are not sorted by offset.
    """
    for moved in ranges:
        if not 0 <= moved.start < moved.end:
            raise Rejected(f"{moved} is not a range of offsets")
    covered = sorted(ranges)
    _check_counts(files, ranges)
    last: dict[object, FileDescription] = {}
    for file in sorted(files, key=lambda file: (file.partition, file.offset_first)):
        before = last.get((file.partition, file.spec_id, file.values))
        if not 0 < file.record_count <= file.offset_last - file.offset_first + 1:
            raise Rejected(f"{file.location} cannot hold {file.record_count} records of [{_span(file)}]")
        if before and before.offset_last >= file.offset_first and (before.order_id is None or file.order_id is None):
            raise Rejected(f"{file.location} [{_span(file)}] overlaps {before.location} [{_span(before)}]")
        if not _is_covered(file, covered):
            raise Rejected(f"{file.location} has [{_span(file)}], which no moved range covers")
        last[file.partition, file.spec_id, file.values] = file


def _check_counts(files: Sequence[FileDescription], ranges: Sequence[MovedRange]) -> None:
    rows: dict[int, int] = {}
    for file in files:
        rows[file.partition] = rows.get(file.partition, 0) + file.record_count
    for partition, count in rows.items():
        room = sum(moved.end - moved.start for moved in ranges if moved.partition == partition)
        if count > room:
            raise Rejected(
                f"files have {count} records of partition {partition}, but its moved ranges only {room} offsets"
            )


def _is_covered(file: FileDescription, ranges: Sequence[MovedRange]) -> bool:
    """Returns whether one range, or several adjacent ones, cover the file."""
    reached = file.offset_first
    for moved in ranges:
        if moved.partition == file.partition and moved.start <= reached < moved.end:
            reached = moved.end
    return reached > file.offset_last


def _span(file: FileDescription) -> str:
    return f"{file.partition}: {file.offset_first} to {file.offset_last}"
