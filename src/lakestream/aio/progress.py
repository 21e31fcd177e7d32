"""Reports steps that take longer than a second, while they run: to the log of a server, or to a user's terminal."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger(__name__)

AFTER_S: Final = 1.0


@contextmanager
def reported(step: str, after_s: float = AFTER_S) -> Iterator[None]:
    """Reports the step once, if the block takes longer. A thread reports it, because the step may block."""
    timer = threading.Timer(after_s, log.info, ("process.step_started step=%r", step))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
