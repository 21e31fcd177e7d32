"""Log lines about clients: one for each that deserves it, but few per second, so that nobody fills our disk with them.

Beside server.py, for one event loop. One address that floods leaves room for what is said of others. What was left out
is counted, and told in one line when its second is over.
"""

import logging
from collections import Counter
from typing import Final

log = logging.getLogger(__name__)

FROM_ONE_MAX: Final = 5
OF_ONE_KIND_MAX: Final = 20
"""Lines per second: 20 of 150 bytes make 260 MB in a day of somebody who never tires."""


class Complaints:
    def __init__(self, from_one_max: int = FROM_ONE_MAX, of_one_kind_max: int = OF_ONE_KIND_MAX) -> None:
        self._from_one_max = from_one_max
        self._of_one_kind_max = of_one_kind_max
        self._second = 0
        self._said: Counter[tuple[str, str]] = Counter()  # by kind and address; no more than may be said
        self._of_kind: Counter[str] = Counter()
        self._unsaid: Counter[str] = Counter()

    def allow(self, kind: str, address: str, now_s: float) -> bool:
        """Whether a line of this kind about this client may be written now."""
        self.tell(now_s)
        if self._of_kind[kind] >= self._of_one_kind_max or self._said[kind, address] >= self._from_one_max:
            self._unsaid[kind] += 1
            return False
        self._of_kind[kind] += 1
        self._said[kind, address] += 1
        return True

    def tell(self, now_s: float) -> None:
        """When a second is over, say how much was left out in it, and begin anew."""
        if int(now_s) == self._second:
            return
        self._second = int(now_s)
        for kind, count in self._unsaid.items():
            log.warning("kafka.unsaid kind=%s lines=%d: clients cause more lines than are written", kind, count)
        for counts in (self._said, self._of_kind, self._unsaid):
            counts.clear()
