"""kafka-python and aiokafka log every broker that is away, and hold on to what they log.

Nobody is to read it as it comes. What they warned of lately is kept as text: it tells why a call is stuck.
"""

import gc
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

LINES_MAX: Final = 20_000


class _Line(NamedTuple):
    at_s: float
    thread: int | None
    text: str


class _Lines(logging.Handler):
    """The last ones, of all clients."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.kept: deque[_Line] = deque(maxlen=LINES_MAX)

    def emit(self, record: logging.LogRecord) -> None:
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        text = f"{record.name}: {record.getMessage()}{error}"
        self.kept.append(_Line(time.monotonic(), record.thread, text))


_lines: Final = _Lines()


def warnings_of(thread: int | None, since_s: float) -> list[str]:
    """What was said on that thread since then."""
    kept = list(_lines.kept)
    return [
        f"{line.at_s - since_s:.3f} s {line.text}" for line in kept if line.thread == thread and line.at_s >= since_s
    ]


@contextmanager
def quiet_clients() -> Iterator[None]:
    with _kept_from("kafka"), _kept_from("aiokafka"):
        yield
    _lines.kept.clear()
    gc.collect()


@contextmanager
def _kept_from(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(_lines)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(_lines)
        logger.setLevel(level)
        logger.propagate = propagate
