"""What history answers. Nothing heavy is imported here."""

from typing import NamedTuple

from lakestream.filed import Piece


class Past(NamedTuple):
    """Batches out of the table: committed records only, and gaps where there are none any more."""

    batches: list[tuple[int, list[Piece]]]
    """Offset and bytes of each."""
    offset_next: int
    """Where to read on. Without batches: up to here there are no rows."""


class PastFile(NamedTuple):
    """A file of the table with records of one log: `[offset_first, offset_end)`, or some of them."""

    offset_first: int
    offset_end: int
    size: int
    newest_ms: int
    """Its newest record; the end of time where nobody has written that down."""
