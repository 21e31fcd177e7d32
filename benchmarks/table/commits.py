"""Times at which records became rows, from the metadata files of a table's commits.

For both sides the time of a commit is the time when its metadata file got its name. After a rename or a link that is
the change time of the inode, which does not depend on when it is read."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.kafka.load.client import LoadFailed

POLL_S: Final = 0.1
WAIT_S_MAX: Final = 180.0

Longs = NDArray[np.int64]
OffsetsOf = Callable[[Mapping[str, Any]], Mapping[int, int]]
"""Returns the next offset of each partition, from a table's current snapshot."""


class Commit(NamedTuple):
    time_ns: int
    offsets: Mapping[int, int]


class Commits:
    """Commits of the only table with metadata files under a folder."""

    def __init__(self, root: Path, offsets_of: OffsetsOf) -> None:
        self._root = root
        self._offsets_of = offsets_of
        self._files_read: set[Path] = set()
        self.all: list[Commit] = []
        """All commits read so far, in order of time."""

    @property
    def records(self) -> int:
        return sum(self.all[-1].offsets.values()) if self.all else 0

    def refresh(self) -> None:
        unread = [path for path in self._root.glob("**/*.metadata.json") if path not in self._files_read]
        for path in unread:
            try:
                time_ns, table = path.stat().st_ctime_ns, json.loads(path.read_bytes())
            except (FileNotFoundError, ValueError):
                continue  # already deleted, or a temporary file that is not complete
            self._files_read.add(path)
            current = table.get("current-snapshot-id")
            for snapshot in table["snapshots"]:
                if snapshot["snapshot-id"] == current:
                    self.all.append(Commit(time_ns, self._offsets_of(snapshot)))
        self.all.sort(key=lambda commit: commit.time_ns)

    async def reach(self, records: int) -> None:
        """Waits until the table has a number of records."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while self.records < records:
            if time.monotonic() > deadline_s:
                raise LoadFailed(
                    f"only {self.records:,} of {records:,} records are in the table after {WAIT_S_MAX:.0f} s"
                )
            await asyncio.sleep(POLL_S)
            self.refresh()

    def times_of(self, partitions: Longs, offsets: Longs) -> Longs:
        """Returns the commit time of each record."""
        commit_times = np.zeros(len(offsets), np.int64)
        times = np.array([commit.time_ns for commit in self.all], np.int64)
        for partition in np.unique(partitions):
            ends = np.maximum.accumulate([commit.offsets.get(int(partition), 0) for commit in self.all])
            chosen = partitions == partition
            commit_times[chosen] = times[np.searchsorted(ends, offsets[chosen], side="right")]
        return commit_times


def lakestream_offsets(snapshot: Mapping[str, Any]) -> Mapping[int, int]:
    offsets = json.loads(snapshot["summary"]["lakestream.next-offsets"])
    return {int(partition): int(offset) for partition, offset in offsets.items()}


def spark_offsets(checkpoints: Path, topic: str) -> OffsetsOf:
    """Returns a function that reads the offsets of a snapshot from the checkpoint of the query's batch."""

    def offsets_of(snapshot: Mapping[str, Any]) -> Mapping[int, int]:
        epoch = snapshot["summary"]["spark.sql.streaming.epochId"]
        last = (checkpoints / "offsets" / epoch).read_text().splitlines()[-1]
        return {int(partition): int(offset) for partition, offset in json.loads(last)[topic].items()}

    return offsets_of
