"""The process that Spark forks its Python workers from, with everything in it that they need.

Spark starts it as `python -m lakestream.pipeline.preload` (spark.python.daemon.module). A worker is then there in
milliseconds instead of a second, and shares the memory of what was loaded.
"""

import gc
import importlib.util
import sys
from collections.abc import Sequence
from typing import Final

ARCHIVES: Final = (".zip", ".jar")
NEEDED: Final = ("pyspark", "py4j", "lakestream")


def without_archives(path: Sequence[str]) -> list[str]:
    """Where modules are looked for, but for Spark's own zip files and its jar.

    They hold what is installed anyway, and a worker reads the lists of their contents anew for every task: with the zip
    files a task costs 0.1 s of CPU more, with the jar 0.04 s."""
    return [entry for entry in path if not entry.endswith(ARCHIVES)]


def _leave_archives() -> None:
    shorter = without_archives(sys.path)
    before, sys.path[:] = list(sys.path), shorter
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        sys.path[:] = before
        return
    for entry in set(sys.path_importer_cache) - set(without_archives(list(sys.path_importer_cache))):
        del sys.path_importer_cache[entry]


def main() -> None:
    _leave_archives()
    import pyspark.daemon

    import lakestream.pipeline.work

    assert lakestream.pipeline.work
    # What is here now lives as long as the workers: looking for garbage in it would only copy its pages.
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
