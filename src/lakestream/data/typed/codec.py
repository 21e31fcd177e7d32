"""Interface of the codecs of all formats: values to column buffers and back. See `format_codecs.py`."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.column_buffers import SLOTS_MAX, ColumnBuffers
from lakestream.schemas.types import Struct

TOO_MANY: Final = -1
"""Problem of all formats: the lists of a value have more than SLOTS_MAX slots."""
TOO_MANY_REASON: Final = f"its lists have more than {SLOTS_MAX:,} elements times columns"


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Decoded values, one row each. A value that could not be decoded is null in all columns."""

    buffers: ColumnBuffers
    slots: int
    """Slots of their lists: the part of the limit that they take."""
    problems: NDArray[np.int32]
    """0: decoded; otherwise a code that `Codec.reason` describes. A null value has no problem and no columns."""
    held: tuple[Any, ...] = ()
    """Objects that own the memory at the addresses in the buffers, except the values themselves."""
    lacks: NDArray[np.bool_] | None = None
    """Values with a field that is null because its column cannot hold it. None: the codec does not detect these."""


class Codec(Protocol):
    """Codec of one schema. It never raises because of the content of a value: bad bytes are a problem of their row."""

    @property
    def shape(self) -> Struct: ...

    def decode(self, values: ByteSpans, slots_max: int | None = None) -> Decoded:
        """Decodes the first of these values: all, or as many as have so many slots in their lists.

        None: SLOTS_MAX, which at least one value has. The memory is allocated for slots that were counted.
        """
        ...

    def problems(self, values: ByteSpans) -> NDArray[np.int32]:
        """Returns the problem of each value, as `decode` does, in time and memory that their slots do not affect."""
        ...

    def encode(self, buffers: ColumnBuffers) -> ByteSpans:
        """Returns the bytes of every row, in the one encoding that this codec writes.

        Null if the row is null as a whole or cannot be encoded with this schema, e.g. lacks a required field.
        """
        ...

    def reason(self, problem: int) -> str:
        """Returns the description of a problem, with the field if it is known."""
        ...
