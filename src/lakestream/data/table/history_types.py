"""Result types of history reads. Imports neither Arrow nor numba."""

from typing import NamedTuple

from lakestream.records.file_region import BufferOrFile


class HistoryRead(NamedTuple):
    """Batches read from the table: committed records only. Offsets of removed records are gaps."""

    batches: list[tuple[int, list[BufferOrFile]]]
    """The base offset and the bytes of each batch."""
    offset_next: int
    """The offset to read next. Without batches, no offset below it has a row."""


class HistoryFile(NamedTuple):
    """A file of the table with records of one partition, all within `[offset_first, offset_end)`."""

    offset_first: int
    offset_end: int
    size: int
    newest_ms: int
    """The newest timestamp of its records; the maximum if the file's statistics lack it."""
