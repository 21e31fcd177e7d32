"""Maps keys to their newest offset, to find superseded rows. Runs in a worker.

A hash table of Arrow with the whole keys, so that different keys never collide.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.kernels.compile import Longs

KEY_TYPE: Final = pa.large_binary()


class Newest:
    """The newest offsets of the added keys, limited in memory."""

    def __init__(self, rows_max: int, bytes_max: int) -> None:
        self._rows_left = rows_max
        self._bytes_left = bytes_max
        self._keys: list[Any] = []
        self._offsets: list[Longs] = []
        self._distinct: Any = None
        self._last: Longs = np.empty(0, np.int64)

    @property
    def is_full(self) -> bool:
        return self._rows_left <= 0 or self._bytes_left <= 0

    def add(self, keys: Any, offsets: Longs, which: NDArray[np.bool_]) -> None:
        """Adds a column of keys with the offsets of its rows. `which`: the rows to add."""
        keys, offsets = keys.cast(KEY_TYPE).filter(pa.array(which)), offsets[which]
        self._keys.append(keys)
        self._offsets.append(offsets)
        self._rows_left -= len(keys)
        self._bytes_left -= keys.nbytes

    def finish(self) -> None:
        """Builds the map; no keys may be added after it."""
        keys = pa.chunked_array(self._keys, KEY_TYPE).combine_chunks()
        offsets = np.concatenate([np.empty(0, np.int64), *self._offsets])
        self._keys, self._offsets = [], []
        order = np.argsort(offsets, kind="stable")
        encoded = keys.dictionary_encode()
        places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)[order]
        keyed = places >= 0
        self._distinct = encoded.dictionary
        self._last = np.full(len(self._distinct), -1, np.int64)
        self._last[places[keyed]] = offsets[order][keyed]  # of repeated keys, the last one counts

    def supersedes(self, keys: Any, offsets: Longs) -> NDArray[np.bool_]:
        """Returns which of these rows have a newer row of the same key."""
        assert self._distinct is not None, "call finish first"
        if not len(self._distinct):
            return np.zeros(len(offsets), np.bool_)
        places = pc.index_in(keys.cast(KEY_TYPE), value_set=self._distinct)
        known: NDArray[np.int32] = places.fill_null(-1).to_numpy(zero_copy_only=False)
        return (known >= 0) & (offsets < self._last[known])
