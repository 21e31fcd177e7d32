"""Partition specs and sort orders of the tables of a run.

Terms name columns of values that appear early, late or never, under another name or with another type; columns of
`_stream`; and columns of keys. A term that is not possible yet is left out and does not stop the topic.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final, NamedTuple
from unittest.mock import patch

from tests.simulation.world import Scenario

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


class TableLayout(NamedTuple):
    """Partitioning and sort order as the settings of a topic state them."""

    partition: str
    sort: str

    @property
    def settings(self) -> dict[str, str]:
        return {"lakestream.table.partition": self.partition, "lakestream.table.sort": self.sort}


def draw_layout(rng: Random) -> TableLayout:
    return TableLayout(rng.choice(PARTITIONS), rng.choice(SORTS))


def timestamp_ms(rng: Random) -> int:
    """Returns the timestamp of a batch, from one of several hours and days, not in order."""
    return FIRST_MS + rng.choice((0, 0, 1, 5, 40, -100)) * HOUR_MS


@contextmanager
def small_windows(scenario: Scenario) -> Iterator[None]:
    """Lowers the limits of the partitioned writer, so that the few records of a run exceed them."""
    if not scenario.layouts:
        yield
        return
    from lakestream.data.table.write import partitioned_writer

    with (
        patch.object(
            partitioned_writer, "write_files", partial(partitioned_writer.write_files, window_bytes=WINDOW_BYTES)
        ),
        patch.object(partitioned_writer, "PARTITIONS_MAX", 6),
        patch.object(partitioned_writer, "FILES_MAX", 4),
    ):
        yield
