"""Class data sharing archives of Spark's loaded and verified classes, which halve the time and the CPU of a start.

Written once, when the first Spark of its kind ends, to the user's cache folder (63 MB). Java checks whether an archive
fits, and starts without it if not. Used by: session.py.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lakestream.clock import Clock
from lakestream.pipeline.spark.java import Java

log = logging.getLogger(__name__)

UNUSED_MS_MAX: Final = 30 * 24 * 60 * 60 * 1000
"""Archives of other versions of Java or Spark are deleted when unused for this long."""

_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without it, Java logs hundreds of classes that cannot be archived."""


class Archive:
    """Archive of one Java, one Spark and one set of flags."""

    def __init__(self, folder: Path, java: Java, spark_home: Path, flags: Sequence[str]) -> None:
        jars = spark_home / "jars"
        parts = [str(java.program.resolve()), java.version, str(jars), str(jars.stat().st_mtime_ns), *flags]
        name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        self._path = folder / f"spark-{name}.jsa"
        self._made = folder / f"spark-{name}.{os.getpid()}.new"

    def flags(self) -> tuple[str, ...]:
        """Returns Java's flags to use the archive, or to write it at exit if it does not exist and can be written."""
        if self._path.exists():
            with contextlib.suppress(OSError):
                os.utime(self._path)
            return (*_QUIET, f"-XX:SharedArchiveFile={self._path}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("pipeline.cache_failed folder=%s error=%s", self._path.parent, error.strerror)
            return _QUIET
        return (*_QUIET, f"-XX:ArchiveClassesAtExit={self._made}")

    def keep(self, clock: Clock) -> None:
        """Called after Java ended: keeps the archive that it wrote for later starts, and deletes unused ones."""
        with contextlib.suppress(OSError):
            self._made.rename(self._path)
            for other in self._path.parent.glob("spark-*"):
                if clock.now_ms() - other.stat().st_mtime_ns // 1_000_000 > UNUSED_MS_MAX:
                    other.unlink()


def cache_folder(environment: Mapping[str, str]) -> Path:
    own = environment.get("LAKESTREAM_CACHE")
    cache = own or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "lakestream")
    return Path(os.path.expanduser(cache), "spark")
