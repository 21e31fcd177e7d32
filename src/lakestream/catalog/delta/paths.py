"""Converts object keys to paths of Delta: relative to the table's root, percent-encoded. Pure."""

from typing import Final
from urllib.parse import quote, unquote

FOLDER: Final = "data"
_AS_IT_IS: Final = "/=+,@~!$&'()*;"
"""Not encoded, in addition to letters, digits and `_.-`. A colon is encoded: it would end the scheme of a URL."""


def root_key(table_key: str) -> str:
    """Returns the key of the Delta table's root folder."""
    return f"{table_key}/{FOLDER}"


def path_of(key: str, root: str) -> str | None:
    """Returns the path of a file; None if it is not under the root."""
    inside = key.removeprefix(f"{root}/")
    return None if inside == key else quote(inside, safe=_AS_IT_IS)


def key_of(path: str, root: str) -> str:
    return f"{root}/{unquote(path)}"
