"""How a process that runs until it is told hears that it is: serve.py, pipeline.py."""

import asyncio
import os
import signal


def told_to_stop(parent: int = -1) -> asyncio.Event:
    """Set by SIGTERM, by Ctrl-C, or when the parent is gone: then `parent` becomes readable. A second Ctrl-C does not
    wait any longer. Who has a parent leaves Ctrl-C to it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    def parent_is_gone() -> None:
        loop.remove_reader(parent)
        stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    if parent < 0:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        loop.add_reader(parent, parent_is_gone)
    return stop
