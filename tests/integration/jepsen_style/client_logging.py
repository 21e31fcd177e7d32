"""Captures the warnings of kafka-python and aiokafka, which log every unavailable broker.

The last warnings are kept as text and are not printed: they show why a call hangs.
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


class _LineBuffer(logging.Filter):
    """The last lines of all clients.

    Other handlers do not receive the records: those of pytest would keep all objects that the records refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[_Line] = deque(maxlen=LINES_MAX)

    def filter(self, record: logging.LogRecord) -> bool:
        error = f": {record.exc_info[1]!r}" if record.exc_info else ""
        text = f"{record.name}: {record.getMessage()}{error}"
        self.lines.append(_Line(time.monotonic(), record.thread, text))
        return False


_lines: Final = _LineBuffer()


def warnings_of_thread(thread: int | None, since_s: float) -> list[str]:
    """Returns the warnings that were logged on a thread since a time."""
    lines = list(_lines.lines)
    return [
        f"{line.at_s - since_s:.3f} s {line.text}" for line in lines if line.thread == thread and line.at_s >= since_s
    ]


@contextmanager
def quiet_clients() -> Iterator[None]:
    with _captured("kafka"), _captured("aiokafka"):
        yield
    _lines.lines.clear()
    gc.collect()


@contextmanager
def _captured(library: str) -> Iterator[None]:
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
            logger.disabled = True  # permanently: some threads still end, and log that


def _names() -> list[str]:
    return list(logging.root.manager.loggerDict)
