"""Validates paths for Oxia, and converts folders to key ranges.

Oxia orders keys by level: a key that ends at a level comes before all deeper keys. So the direct children of P are
exactly the keys in ["P/", "P//"), regardless of deeper keys.
"""

from lakestream.errors import Rejected
from lakestream.metadata import keys
from lakestream.metadata.store import Folder, Key

PROBE_PATH = keys.PROBE.path
"""Key that is put in each shard only to find the leader of the shard and its time. It is never read."""


def check_key(key: Key) -> Key:
    """Raises Rejected for keys that Oxia accepts but that would be its own keys, empty or in another folder."""
    path = key.path
    if not path.startswith("/") or path.endswith("/") or "//" in path or path == PROBE_PATH or not key.home:
        raise Rejected(f"metadata key {path!r} of home {key.home!r}: write paths as /folder/name, with a home")
    return key


def check_folder(folder: Folder, *names: str | None) -> Folder:
    path = folder.path
    if not path.startswith("/") or path.endswith("/") or "//" in path or not folder.home:
        raise Rejected(f"metadata folder {path!r} of home {folder.home!r}: write paths as /folder, with a home")
    for name in names:
        if name is not None and "/" in name:
            raise Rejected(f"metadata name {name!r} in folder {path}: names must not contain a slash")
    return folder


def range_of(folder: Folder, start: str = "", end: str | None = None) -> tuple[str, str]:
    """Returns Oxia's half-open range for the keys of a folder with `start <= name < end`."""
    return f"{folder.path}/{start}", f"{folder.path}//" if end is None else f"{folder.path}/{end}"


def is_child(folder: Folder, path: str) -> bool:
    """Returns whether the path is in the folder. Floor and ceiling search the shard, also other and deeper folders."""
    name = path.removeprefix(f"{folder.path}/")
    return name != path and name != "" and "/" not in name
