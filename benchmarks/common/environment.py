"""Folders of benchmarks: on a real disk, deleted at the end."""

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_counter = itertools.count()


@dataclass(frozen=True, slots=True)
class Stage:
    """Folder and length of a run of benchmarks."""

    folder: Path
    quick: bool

    @property
    def times(self) -> int:
        """Number of measured runs of each side."""
        return 2 if self.quick else 5

    def new_folder(self) -> Path:
        """Creates an empty folder."""
        path = self.folder / f"{next(_counter)}"
        path.mkdir()
        return path


@contextmanager
def set_up(quick: bool) -> Iterator[Stage]:
    """Creates a folder in BENCH_DIR or in the folder of temporary files, and deletes it at the end of the block.

    It must be on a disk: a file system in memory would not show the cost of writes."""
    folder = Path(tempfile.mkdtemp(prefix="lakestream-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield Stage(folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
