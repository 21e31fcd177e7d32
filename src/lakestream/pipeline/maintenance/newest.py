"""The newest offset of each key, and which rows it supersedes. Keys are compared as they are, by Arrow: a hash table of
the keys themselves, no bytes lost. Runs in a worker.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from numpy.typing import NDArray

from lakestream.data.table.compiled import Longs

KEY_TYPE: Final = pa.large_binary()


class Newest:
    """Of the keys that were added, until there is no more room."""

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
        """A column of keys, the offsets of its rows, and which of them count."""
        keys, offsets = keys.cast(KEY_TYPE).filter(pa.array(which)), offsets[which]
        self._keys.append(keys)
        self._offsets.append(offsets)
        self._rows_left -= len(keys)
        self._bytes_left -= keys.nbytes

    def settle(self) -> None:
        """All that will be added was."""
        keys = pa.chunked_array(self._keys, KEY_TYPE).combine_chunks()
        offsets = np.concatenate([np.empty(0, np.int64), *self._offsets])
        self._keys, self._offsets = [], []
        order = np.argsort(offsets, kind="stable")
        encoded = keys.dictionary_encode()
        places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)[order]
        keyed = places >= 0
        self._distinct = encoded.dictionary
        self._last = np.full(len(self._distinct), -1, np.int64)
        self._last[places[keyed]] = offsets[order][keyed]  # where a key comes again, the last one counts

    def supersedes(self, keys: Any, offsets: Longs) -> NDArray[np.bool_]:
        """Which of these rows have a newer one of the same key."""
        assert self._distinct is not None, "settle comes first"
        if not len(self._distinct):
            return np.zeros(len(offsets), np.bool_)
        places = pc.index_in(keys.cast(KEY_TYPE), value_set=self._distinct)
        known: NDArray[np.int32] = places.fill_null(-1).to_numpy(zero_copy_only=False)
        return (known >= 0) & (offsets < self._last[known])
