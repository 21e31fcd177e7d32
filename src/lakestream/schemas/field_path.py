"""Paths of fields for messages."""

from typing import Final

PATH_MAX: Final = 300
"""Characters. A name may be as long as its schema, and a program of a codec has paths for thousands of fields."""


def below(path: str, name: str) -> str:
    """Returns the path of a field within the record at `path`. An empty `path` is the whole value."""
    return cut(f"{path}.{name}" if path else name)


def cut(path: str) -> str:
    return path if len(path) <= PATH_MAX else f"{path[:PATH_MAX]}…"
