"""What history answers. Nothing heavy is imported here."""

from typing import NamedTuple

from lakestream.filed import Piece


class Past(NamedTuple):
    """Batches out of the table: committed records only, and gaps where there are none any more."""

    batches: list[tuple[int, list[Piece]]]
    """Offset and bytes of each."""
    offset_next: int
    """Where to read on. Without batches: up to here there are no rows."""
