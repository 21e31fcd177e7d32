"""What was used last, as much of it as may be kept."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        if (found := self._kept.get(key)) is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int) -> None:
        self._weight += weight - self._kept.pop(key, (None, 0))[1]
        self._kept[key] = (value, weight)
        while self._weight > self._weight_max:
            self._weight -= self._kept.popitem(last=False)[1][1]
