"""What every format offers: values to frames and back. `codecs.py` makes one for a writer."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.located import Located
from lakestream.data.typed.frame import Frame
from lakestream.schemas.shape import Struct


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """One row of the frame for each value, also for those that could not be decoded: they are null in all columns."""

    frame: Frame
    problems: NDArray[np.int32]
    """0: decoded. Else why not: `Codec.reason` says it in words. A null value has no problem, and no columns."""
    held: tuple[Any, ...] = ()
    """What addresses in the frame point into, besides the values themselves."""
    lacks: NDArray[np.bool_] | None = None
    """Values that have something which is null in its column, for no such column can have it. None: nobody looked."""


class Codec(Protocol):
    """Of one schema. Never fails for what a value holds: hostile bytes are a problem of their row."""

    @property
    def shape(self) -> Struct: ...

    def decode(self, values: Located) -> Decoded: ...

    def encode(self, frame: Frame) -> Located:
        """The bytes of every row in the one way that this codec writes them. A row that is null as a whole, or cannot
        be written in this schema (a field without default is missing, …), is null."""
        ...

    def reason(self, problem: int) -> str:
        """In words, with the field where it is known."""
        ...
