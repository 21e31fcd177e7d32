"""Where a benchmark runs: folders on a real disk, gone when it ends."""

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
    folder: Path
    quick: bool

    @property
    def times(self) -> int:
        return 2 if self.quick else 5

    def fresh(self) -> Path:
        """A new folder."""
        path = self.folder / f"{next(_counter)}"
        path.mkdir()
        return path


@contextmanager
def set_up(quick: bool) -> Iterator[Stage]:
    """Under BENCH_DIR, or where temporary files go; it must be a disk, or there is nothing to measure."""
    folder = Path(tempfile.mkdtemp(prefix="lakestream-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        yield Stage(folder, quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
