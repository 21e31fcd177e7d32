"""A data file as it is known before any table names it. Made by who wrote it (`data/table/parquet.py`), carried to
whoever commits it (`append.py`), small enough to travel through Spark by the thousand.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from lakestream.errors import Rejected


class FileDescription(msgspec.Struct, frozen=True):
    """A Parquet file with rows of one partition of the stream. Statistics are by Iceberg field id, bounds in Iceberg's
    single-value serialisation."""

    location: str
    partition: int
    """Of the stream, however the table is partitioned."""
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
    """Where a reader may start in the middle: at each row group."""
    spec_id: int | None = None
    """The partition spec that it follows; None: the one by the stream's partition alone."""
    values: tuple[Any, ...] = ()
    """What all its rows have in common by that spec, as manifests keep it (partition_values.py)."""
    order_id: int | None = None
    """The sort order of its rows; None: they ascend by offset."""


class MovedRange(NamedTuple):
    """Offsets `[start, end)` of a partition, all of whose records that count are in the files, if any."""

    partition: int
    start: int
    end: int


def data_location(table_location: str, partition: int, offset_first: int, file_id: str) -> str:
    """Where a new file goes: in order of offset to whoever looks into the folder."""
    return f"{table_location}/data/partition={partition}/{offset_first:020d}-{file_id}.parquet"


def ends_of(ranges: Sequence[MovedRange], starts: Mapping[int, int]) -> dict[int, int] | None:
    """Where each partition gets to if its ranges follow `starts`, and each other, without a gap. None: they do not."""
    ends: dict[int, int] = {}
    for moved in sorted(ranges):
        if moved.start != ends.get(moved.partition, starts.get(moved.partition, 0)):
            return None
        ends[moved.partition] = moved.end
    return ends


def check_files(files: Sequence[FileDescription], ranges: Sequence[MovedRange]) -> None:
    """Rejected: a file holds what none of the ranges covers, or two hold the same. None of it may reach a table. Files
    of several partitions of the table share a range, but not its rows; so do those that are not sorted by offset."""
    for moved in ranges:
        if not 0 <= moved.start < moved.end:
            raise Rejected(f"{moved} is no range of offsets")
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
            raise Rejected(f"{file.location} holds [{_span(file)}], which no range that is moved covers")
        last[file.partition, file.spec_id, file.values] = file


def _check_counts(files: Sequence[FileDescription], ranges: Sequence[MovedRange]) -> None:
    rows: dict[int, int] = {}
    for file in files:
        rows[file.partition] = rows.get(file.partition, 0) + file.record_count
    for partition, count in rows.items():
        room = sum(moved.end - moved.start for moved in ranges if moved.partition == partition)
        if count > room:
            raise Rejected(f"files hold {count} records of partition {partition}, of which {room} offsets are moved")


def _is_covered(file: FileDescription, ranges: Sequence[MovedRange]) -> bool:
    """By one range, or by several that follow each other."""
    reached = file.offset_first
    for moved in ranges:
        if moved.partition == file.partition and moved.start <= reached < moved.end:
            reached = moved.end
    return reached > file.offset_last


def _span(file: FileDescription) -> str:
    return f"{file.partition}: {file.offset_first} to {file.offset_last}"
