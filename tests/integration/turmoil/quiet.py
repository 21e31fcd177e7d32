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


class _Lines(logging.Filter):
    """The last ones, of all clients. Nobody else gets them: pytest's own handlers are everywhere, and keep the records
    with all that these refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[_Line] = deque(maxlen=LINES_MAX)

    def filter(self, record: logging.LogRecord) -> bool:
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        text = f"{record.name}: {record.getMessage()}{error}"
        self.kept.append(_Line(time.monotonic(), record.thread, text))
        return False


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
def _kept_from(library: str) -> Iterator[None]:
    logging.getLogger(library).setLevel(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _names() if name.partition(".")[0] == library]
    for logger in loggers:
        logger.addFilter(_lines)
        logger.disabled = False
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_lines)
            logger.disabled = True  # for good: some threads still end, and say so


def _names() -> list[str]:
    return list(logging.root.manager.loggerDict)
