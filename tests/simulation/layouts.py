"""How the tables of a run are partitioned and sorted, and who changes that while it goes on.

Terms are of columns that values bring sooner or later, never, under another name, or with another type; of the stream's
own; of keys. What cannot be had is left out, and stops nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final, NamedTuple
from unittest.mock import patch

from tests.simulation.world import Mood

PARTITIONS: Final = (
    "bucket(3, label)",
    "truncate(2, label)",
    "truncate(50, n)",
    "day(_stream.timestamp)",
    "_stream.partition, bucket(2, n)",
    "hour(_stream.timestamp), truncate(4, label)",
    "ok, n",
    "bucket(2, title), bucket(2, _key.id)",
    "bucket(4, inner.a), _stream.partition",
    "",
    "_stream.partition",
)
SORTS: Final = (
    "label",
    "n desc nulls last, label",
    "truncate(20, n), label desc nulls first",
    "_stream.timestamp desc",
    "_key.id nulls last",
    "",
    "",
)
HOUR_MS: Final = 3_600_000
FIRST_MS: Final = 1_700_000_000_000
WINDOW_BYTES: Final = 600


class Arranged(NamedTuple):
    """As the settings of a topic say it."""

    partition: str
    sort: str

    @property
    def settings(self) -> dict[str, str]:
        return {"lakestream.table.partition": self.partition, "lakestream.table.sort": self.sort}


def drawn(luck: Random) -> Arranged:
    return Arranged(luck.choice(PARTITIONS), luck.choice(SORTS))


def timestamp_ms(luck: Random) -> int:
    """Of a batch: of one of some hours and days, not in order."""
    return FIRST_MS + luck.choice((0, 0, 1, 5, 40, -100)) * HOUR_MS


@contextmanager
def small_windows(mood: Mood) -> Iterator[None]:
    """What is divided at once, and into how many files, is little here: or no run would ever come so far."""
    if not mood.arranged:
        yield
        return
    from lakestream.data.table import splitting

    with (
        patch.object(splitting, "write_files", partial(splitting.write_files, window_bytes=WINDOW_BYTES)),
        patch.object(splitting, "PARTITIONS_MAX", 6),
        patch.object(splitting, "FILES_MAX", 4),
    ):
        yield
