"""Pauses that grow with each failure, for restarts and retries."""

import math


class Backoff:
    """Doubles the pause after each failure, from `first_s` to `max_s`."""

    def __init__(self, first_s: float, max_s: float, steady_s: float = math.inf) -> None:
        """`steady_s`: what ran for so long before it failed is restarted after the first pause again."""
        self.pause_s = 0.0
        """After the last failure; 0 if none followed the last reset."""
        self._first_s = first_s
        self._max_s = max_s
        self._steady_s = steady_s

    def failed(self, ran_s: float = 0.0) -> float:
        """Returns the seconds to wait before the next attempt."""
        if ran_s >= self._steady_s:
            self.reset()
        self.pause_s = min(max(2 * self.pause_s, self._first_s), self._max_s)
        return self.pause_s

    def reset(self) -> None:
        self.pause_s = 0.0
