"""Oxia's key space: which paths we allow, and how a folder becomes a range of keys.

Oxia orders keys level by level: a key that ends at a level comes before every key that goes deeper. So the direct
children of P are exactly the keys in ["P/", "P//"), wherever deeper keys are.
"""

from lakestream.errors import Rejected
from lakestream.metadata import keys
from lakestream.metadata.store import Folder, Key

PROBE_PATH = keys.PROBE.path
"""One key per shard that we put only to learn who leads the shard, and what time it is there. Nobody reads it."""


def check_key(key: Key) -> Key:
    """Oxia would take an empty key, and keys among its own; a sequence of slashes would leave its folder."""
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
            raise Rejected(f"metadata name {name!r} in folder {path}: names hold no slash")
    return folder


def range_of(folder: Folder, start: str = "", end: str | None = None) -> tuple[str, str]:
    """The keys of a folder with `start <= name < end`, as Oxia's half-open range."""
    return f"{folder.path}/{start}", f"{folder.path}//" if end is None else f"{folder.path}/{end}"


def is_child(folder: Folder, path: str) -> bool:
    """Floor and ceiling look at the whole shard: what they return may lie in another folder, or deeper."""
    name = path.removeprefix(f"{folder.path}/")
    return name != path and name != "" and "/" not in name
