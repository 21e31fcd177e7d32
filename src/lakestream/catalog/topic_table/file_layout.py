"""How workers partition new rows into files and sort them. Plain values.

Before: update_layout.py, which reads it from the table's metadata.  After: `data/table/write/partitioned_writer.py`.
"""

from dataclasses import dataclass
from typing import Final

from lakestream.schemas.layout_terms import Transform
from lakestream.schemas.types import Primitive


@dataclass(frozen=True, slots=True)
class TransformedColumn:
    """A column of the table with a partition transform."""

    source_id: int
    kind: Primitive
    """Of the column."""
    transform: Transform

    @property
    def result(self) -> Primitive:
        return self.transform.result(self.kind)


@dataclass(frozen=True, slots=True)
class SortKey:
    cut: TransformedColumn
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class FileLayout:
    spec_id: int | None = None
    """The partition spec of the files; None: the one by `_stream.partition` alone."""
    cuts: tuple[TransformedColumn, ...] = ()
    """The fields of the spec, in order."""
    order_id: int | None = None
    """None: rows ascend by offset."""
    sort: tuple[SortKey, ...] = ()
    has_rest: bool = True
    """Whether the table also has a spec by `_stream.partition` alone, for rows of too many partitions."""


PLAIN_LAYOUT: Final = FileLayout()
"""The default: a file has rows of one partition of the topic, sorted by offset."""
