"""Prints the steps of a command that take longer than a second, if standard error is a terminal."""

import logging
import sys

from lakestream.aio import progress
from lakestream.cli.output.text import escaped


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"lakestream: {escaped(' '.join(map(str, record.args or ())))} …"


def show_progress() -> None:
    """Without a terminal, the steps are lines of the log of servers; other commands do not print them."""
    if not sys.stderr.isatty():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    progress.log.handlers[:] = [handler]
    progress.log.setLevel(logging.INFO)
    progress.log.propagate = False
