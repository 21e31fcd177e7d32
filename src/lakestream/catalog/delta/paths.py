"""Where a file of Iceberg is, as Delta writes it: relative to the table's root, percent-encoded. Pure."""

from typing import Final
from urllib.parse import quote, unquote

FOLDER: Final = "data"
LOG_FOLDER: Final = "_delta_log"
HAS_DELTA: Final = "lakestream.delta"
"""A property of the Iceberg table: there is a Delta table beside it, whose files must stay."""
_AS_IT_IS: Final = "/=+,@~!$&'()*;"
"""Besides letters, digits and `_.-`. Not the colon: what stands before it would be the scheme of a URL."""


def root_key(table_key: str) -> str:
    """Of the Delta table of a table."""
    return f"{table_key}/{FOLDER}"


def path_of(key: str, root: str) -> str | None:
    """None: the file is not inside the root."""
    inside = key.removeprefix(f"{root}/")
    return None if inside == key else quote(inside, safe=_AS_IT_IS)


def key_of(path: str, root: str) -> str:
    return f"{root}/{unquote(path)}"
