"""A reading thread: some reads per round, each on the newest commit at its own time."""

import sqlite3
from pathlib import Path

from lakestream.metadata.sqlite.line import Line
from lakestream.metadata.sqlite.trouble import explain

READS_MAX = 16
"""Per round: an answer waits for at most this many others."""


def read_rounds(line: Line[sqlite3.Connection], connection: sqlite3.Connection, path: Path) -> None:
    while (first := line.wait()) is not None:
        jobs = [first]
        line.join_waiting(jobs, READS_MAX)
        for job in jobs:
            try:
                job.run(connection)
            except sqlite3.Error as error:
                job.error = explain(error, path)
        line.answer(jobs)
    connection.close()
