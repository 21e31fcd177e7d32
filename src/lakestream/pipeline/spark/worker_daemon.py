"""The process from which Spark forks its Python workers, with all modules that they need.

Spark starts it as `python -m lakestream.pipeline.spark.worker_daemon` (spark.python.daemon.module). A worker then
starts in milliseconds instead of a second, and shares the memory of the loaded modules.
"""

import gc
import importlib.util
import sys
from collections.abc import Sequence
from typing import Final

ARCHIVES: Final = (".zip", ".jar")
NEEDED: Final = ("pyspark", "py4j", "lakestream")


def without_archives(path: Sequence[str]) -> list[str]:
    """Returns the module search path without Spark's own zip files and its jar.

    Their modules are installed anyway, and a worker reads the archives' directories again for every task: the zip files
    cost 0.1 s of CPU per task, the jar 0.04 s.
    """
    return [entry for entry in path if not entry.endswith(ARCHIVES)]


def _remove_archives_from_path() -> None:
    shorter = without_archives(sys.path)
    before, sys.path[:] = list(sys.path), shorter
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        sys.path[:] = before
        return
    for entry in set(sys.path_importer_cache) - set(without_archives(list(sys.path_importer_cache))):
        del sys.path_importer_cache[entry]


def main() -> None:
    _remove_archives_from_path()
    import pyspark.daemon

    import lakestream.pipeline.worker

    assert lakestream.pipeline.worker
    # All current objects live as long as the workers: a garbage collection would only copy their pages.
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
