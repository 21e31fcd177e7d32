"""When records became rows: seen in the metadata files that a table's commits leave behind.

A commit counts from the moment that its metadata file has its name, for both sides: for a rename or a link that is the
inode's change time, so it is exact however late we look.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.kafka.load.client import LoadFailed

LOOK_S: Final = 0.1
WAIT_S_MAX: Final = 180.0

Longs = NDArray[np.int64]
OffsetsOf = Callable[[Mapping[str, Any]], Mapping[int, int]]
"""From a table's current snapshot: the offset up to which it has each partition."""


class Commit(NamedTuple):
    time_ns: int
    offsets: Mapping[int, int]


class Commits:
    """Of the one table whose metadata files lie under a folder."""

    def __init__(self, root: Path, offsets_of: OffsetsOf) -> None:
        self._root = root
        self._offsets_of = offsets_of
        self._known: set[Path] = set()
        self.all: list[Commit] = []
        """In order of time, as far as we have looked."""

    @property
    def records(self) -> int:
        return sum(self.all[-1].offsets.values()) if self.all else 0

    def look(self) -> None:
        fresh = [path for path in self._root.glob("**/*.metadata.json") if path not in self._known]
        for path in fresh:
            try:
                time_ns, table = path.stat().st_ctime_ns, json.loads(path.read_bytes())
            except (FileNotFoundError, ValueError):
                continue  # removed already, or not written yet: hidden files of a rename under way
            self._known.add(path)
            current = table.get("current-snapshot-id")
            for snapshot in table["snapshots"]:
                if snapshot["snapshot-id"] == current:
                    self.all.append(Commit(time_ns, self._offsets_of(snapshot)))
        self.all.sort(key=lambda commit: commit.time_ns)

    async def reach(self, records: int) -> None:
        """Until so many are in the table."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while self.records < records:
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"{self.records:,} of {records:,} records are in the table after {WAIT_S_MAX:.0f} s")
            await asyncio.sleep(LOOK_S)
            self.look()

    def times_of(self, partitions: Longs, offsets: Longs) -> Longs:
        """When each of these records was committed."""
        found = np.zeros(len(offsets), np.int64)
        times = np.array([commit.time_ns for commit in self.all], np.int64)
        for partition in np.unique(partitions):
            ends = np.maximum.accumulate([commit.offsets.get(int(partition), 0) for commit in self.all])
            chosen = partitions == partition
            found[chosen] = times[np.searchsorted(ends, offsets[chosen], side="right")]
        return found


def lakestream_offsets(snapshot: Mapping[str, Any]) -> Mapping[int, int]:
    said = json.loads(snapshot["summary"]["lakestream.next-offsets"])
    return {int(partition): int(offset) for partition, offset in said.items()}


def spark_offsets(checkpoints: Path, topic: str) -> OffsetsOf:
    """A snapshot names the batch of the query that it is, and the checkpoint of that batch has its offsets."""

    def offsets_of(snapshot: Mapping[str, Any]) -> Mapping[int, int]:
        epoch = snapshot["summary"]["spark.sql.streaming.epochId"]
        last = (checkpoints / "offsets" / epoch).read_text().splitlines()[-1]
        return {int(partition): int(offset) for partition, offset in json.loads(last)[topic].items()}

    return offsets_of
