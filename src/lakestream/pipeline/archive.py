"""Spark's classes as Java keeps them after it has read and checked them: halves the time and the CPU of a start.

Made once, when the first Spark of its kind ends, and kept in the user's cache folder (63 MB). Java looks by itself
whether an archive fits, and goes without it where it does not. Used by: spark.py.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lakestream.clock import Clock
from lakestream.pipeline.java import Java

log = logging.getLogger(__name__)

UNUSED_MS_MAX: Final = 30 * 24 * 60 * 60 * 1000
"""Of another version of Java or Spark, for which nobody has asked for so long."""

_QUIET: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java says of hundreds of classes that they cannot be kept."""


class Archive:
    """Of one Java, one Spark and one set of flags."""

    def __init__(self, folder: Path, java: Java, spark_home: Path, flags: Sequence[str]) -> None:
        jars = spark_home / "jars"
        told = [str(java.program.resolve()), java.version, str(jars), str(jars.stat().st_mtime_ns), *flags]
        name = hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]
        self._path = folder / f"spark-{name}.jsa"
        self._made = folder / f"spark-{name}.{os.getpid()}.new"

    def flags(self) -> tuple[str, ...]:
        """To use it, or to make it at the end of this Java. None, where nothing can be kept."""
        if self._path.exists():
            with contextlib.suppress(OSError):
                os.utime(self._path)
            return (*_QUIET, f"-XX:SharedArchiveFile={self._path}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            log.warning("pipeline.no_cache folder=%s error=%s", self._path.parent, error.strerror)
            return _QUIET
        return (*_QUIET, f"-XX:ArchiveClassesAtExit={self._made}")

    def keep(self, clock: Clock) -> None:
        """After the end of Java: what it made is for the next ones. Those that nobody uses any longer go."""
        with contextlib.suppress(OSError):
            self._made.rename(self._path)
            for other in self._path.parent.glob("spark-*"):
                if clock.now_ms() - other.stat().st_mtime_ns // 1_000_000 > UNUSED_MS_MAX:
                    other.unlink()


def cache_folder(environment: Mapping[str, str]) -> Path:
    own = environment.get("LAKESTREAM_CACHE")
    cache = own or Path(environment.get("XDG_CACHE_HOME") or "~/.cache", "lakestream")
    return Path(os.path.expanduser(cache), "spark")
