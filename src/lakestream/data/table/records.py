"""The records of batches, decompressed: where they lie, and how far they have become rows.

Made by decode.py, used up by columns.py.
"""

from dataclasses import dataclass, fields
from typing import Any

from lakestream.data.table.compiled import Longs
from lakestream.data.table.heads import Heads


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """One array a field, one number for each batch, but for the buffers, which are what views name."""

    buffers: list[Any]
    heads: Heads
    address: Longs
    size: Longs
    buffer: Longs
    position: Longs
    count: Longs
    offset_before: Longs

    def __len__(self) -> int:
        return len(self.heads)

    def behind(self, batch: int, record: int, at: int, offset_before: int) -> "Records":
        """What is left when all batches before this one are done, and so many of its records and bytes."""
        rest = Records(self.buffers, *(getattr(self, field.name)[batch:] for field in fields(self)[1:]))
        if record:
            for array, step in ((rest.address, at), (rest.size, -at), (rest.position, at), (rest.count, -record)):
                array[0] += step
            rest.offset_before[0] = offset_before
        return rest
