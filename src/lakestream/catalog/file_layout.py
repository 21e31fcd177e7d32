"""How the rows that come into a table are divided into files, and sorted in them: for workers. Plain values.

Before: arranging.py, which finds it in the table's metadata.  After: `data/table/splitting.py`.
"""

from dataclasses import dataclass
from typing import Final

from lakestream.schemas.shape import Primitive
from lakestream.schemas.terms import Transform


@dataclass(frozen=True, slots=True)
class Cut:
    """A column of the table, transformed."""

    source_id: int
    kind: Primitive
    """Of the column."""
    transform: Transform

    @property
    def result(self) -> Primitive:
        return self.transform.result(self.kind)


@dataclass(frozen=True, slots=True)
class SortKey:
    cut: Cut
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class FileLayout:
    spec_id: int | None = None
    """The partition spec that files follow; None: the one by the stream's partition alone."""
    cuts: tuple[Cut, ...] = ()
    """Its fields, in order."""
    order_id: int | None = None
    """None: rows ascend by offset."""
    sort: tuple[SortKey, ...] = ()
    has_rest: bool = True
    """The table has a spec by the stream's partition alone too, for rows of too many partitions."""


PLAIN_LAYOUT: Final = FileLayout()
"""A file has what one log gives, by offset: what a table has unless its topic says otherwise."""
