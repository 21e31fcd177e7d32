"""Caches with a limit on their total weight; the least recently used entry is evicted first."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, ParamSpec, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")


class LruCache(Generic[K, V]):
    """Keeps values until their weights exceed a limit. Not thread-safe: use it on one event loop, or with a lock.

    `overhead` is added to each weight. A value that exceeds the limit by itself is not kept. With `keep_newest`, the
    value that was put last is always kept.
    """

    def __init__(self, weight_max: int, overhead: int = 0, *, keep_newest: bool = False) -> None:
        self._weight_max: Final = weight_max
        self._overhead: Final = overhead
        self._keep_newest: Final = keep_newest
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.weight = 0
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        self.evict(key)
        weight += self._overhead
        if weight > self._weight_max and not self._keep_newest:
            return
        self._entries[key] = (value, weight)
        self.weight += weight
        while self.weight > self._weight_max and len(self._entries) > 1:
            _, (_, oldest_weight) = self._entries.popitem(last=False)
            self.weight -= oldest_weight

    def evict_next(self, key: K) -> None:
        """Makes the entry of `key`, if it exists, the first to be evicted."""
        if key in self._entries:
            self._entries.move_to_end(key, last=False)

    def evict(self, key: K) -> None:
        """Removes the entry of `key`, if it exists."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.weight -= entry[1]

    def clear(self) -> None:
        self._entries.clear()
        self.weight = 0


class WeightedCacheFunction(Generic[P, V]):
    """Function that caches its results by weight, where `functools.lru_cache` counts them.

    Results that are derived from a schema may take a hundred bytes or a hundred megabytes.
    """

    def __init__(self, function: Callable[P, V], weight_max: int, weight: Callable[P, int]) -> None:
        self._function: Final = function
        self._weight: Final = weight
        self._lock: Final = threading.Lock()
        self._results: Final[LruCache[Any, V]] = LruCache(weight_max, keep_newest=True)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> V:
        key = (*args, *kwargs.items())
        with self._lock:
            result = self._results.get(key)
        if result is None:
            result = self._function(*args, **kwargs)  # without the lock: two threads may compute the same result once
            with self._lock:
                self._results.put(key, result, self._weight(*args, **kwargs))
        return result

    def cache_clear(self) -> None:
        with self._lock:
            self._results.clear()


def weighted_cache(
    weight_max: int, weight: Callable[P, int]
) -> Callable[[Callable[P, V]], WeightedCacheFunction[P, V]]:
    """Decorates a function with a cache. `weight` receives the arguments of a call."""
    return lambda function: WeightedCacheFunction(function, weight_max, weight)
