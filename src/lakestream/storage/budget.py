"""How many retries there may be: a bucket of tokens, so that an outage is not made worse by those who wait for its end.

Used by retrying.py. Every call pays a part of a token in, every retry takes a whole one; some come with time, so that
a process with few calls can retry at all. When the bucket is empty, errors go to the caller at once.
"""


class RetryBudget:
    def __init__(self, *, per_call: float, per_s: float, burst: float) -> None:
        self._per_call = per_call
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._taken_s: float | None = None

    def note_call(self) -> None:
        self._tokens = min(self._burst, self._tokens + self._per_call)

    def take(self, now_s: float) -> bool:
        """Whether one more retry may be made now."""
        waited_s = 0.0 if self._taken_s is None else now_s - self._taken_s
        self._taken_s = now_s
        self._tokens = min(self._burst, self._tokens + waited_s * self._per_s)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
