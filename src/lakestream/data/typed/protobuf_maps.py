"""Maps of decoded messages that have a key twice. To Protobuf the last one counts; a column cannot say both."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs
from lakestream.data.typed.frame import MAP, Frame
from lakestream.data.typed.kernels_arrow import BYTES, NARROW, WIDE, find_twins
from lakestream.schemas.shape import Kind, Primitive

_HOW: Final = {Kind.STRING: BYTES, Kind.DECIMAL: WIDE}


def values_with_twins(frame: Frame) -> NDArray[np.bool_]:
    """Of a frame whose rows stand in the order of their values."""
    layout = frame.layout
    found = np.zeros(len(frame), np.bool_)
    owners: dict[int, Longs] = {0: np.arange(len(frame))}
    for node in np.flatnonzero(layout.opened >= 0).tolist():
        slots = slice(int(frame.base[node]), int(frame.base[node]) + int(frame.counts[layout.domains[node]]))
        valid, firsts, counts = frame.valid[slots], frame.bits[slots], frame.more[slots]
        sizes = np.where(valid, counts, 0)
        mine = owners[int(layout.domains[node])]
        owners[int(layout.opened[node])] = np.repeat(mine, sizes)
        if layout.kinds[node] == MAP and sizes.max(initial=0) > 1:
            found[mine[_twins(frame, node, valid, firsts, counts, int(sizes.max())) != 0]] = True
    return found


def _twins(
    frame: Frame, node: int, valid: NDArray[np.uint8], firsts: Longs, counts: Longs, largest: int
) -> NDArray[np.uint8]:
    """Of a map: where it has some."""
    key = frame.layout.types[node + 1]
    assert isinstance(key, Primitive), "keys of maps are no structs"
    slots = slice(int(frame.base[node + 1]), int(frame.base[node + 1]) + int(frame.counts[frame.layout.opened[node]]))
    twins = np.zeros(valid.size, np.uint8)
    room = 1 << (2 * largest - 1).bit_length()
    find_twins(valid, firsts, counts, frame.bits[slots], frame.more[slots], _HOW.get(key.kind, NARROW), room, twins)
    return twins
