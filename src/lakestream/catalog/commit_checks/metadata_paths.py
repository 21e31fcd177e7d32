"""Lists the paths in a table's metadata, and checks those that a commit adds. Pure.

added_files.py checks the paths in manifest lists and manifests.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from lakestream.catalog.locations import TableFolder
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.errors import Rejected

METADATA_FOLDER: Final = "write.metadata.path"
FOLDER_PROPERTIES: Final = (
    METADATA_FOLDER,
    "write.data.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
_STATISTICS: Final = ("statistics", "partition-statistics")

T = TypeVar("T")


def metadata_folder(folder: TableFolder, metadata: Json) -> str:
    """Returns the folder of metadata files, manifests and manifest lists.

    Rejected: a property of the table sets one that is not in the table's folder.
    """
    chosen = metadata["properties"].get(METADATA_FOLDER, "")
    return _checked(METADATA_FOLDER, folder.check_folder, chosen) if chosen else f"{folder.location}/metadata"


def check_paths(folder: TableFolder, base: Json | None, changed: Json) -> None:
    """Raises Rejected if the metadata names a file or folder outside of the table which `base` does not name."""
    properties = {} if base is None else base["properties"]
    for name in FOLDER_PROPERTIES:
        chosen = changed["properties"].get(name, "")
        if chosen and chosen != properties.get(name):
            _checked(name, folder.check_new_folder, chosen)
    known = set() if base is None else set(map(repr, _paths(base)))
    for path in _paths(changed):
        if repr(path) in known:
            continue
        if not isinstance(path, str) or not path:
            raise Rejected(f"{path!r:.200} is not a file path: use the URL of a file under {folder.location}")
        folder.key_of(path)


def statistics_of(metadata: Json) -> set[str]:
    """Returns the paths of statistics files, of the table and of its partitions."""
    return {path for path in _statistics(metadata) if isinstance(path, str) and path}


def manifest_lists(metadata: Json) -> list[str]:
    return [snapshot["manifest-list"] for snapshot in metadata["snapshots"] if snapshot.get("manifest-list")]


def inline_manifests(metadata: Json) -> list[str]:
    """Returns manifests without a manifest list, as in format version 1."""
    return [path for snapshot in metadata["snapshots"] for path in snapshot.get("manifests") or ()]


def _paths(metadata: Json) -> Iterator[Any]:
    yield from manifest_lists(metadata)
    yield from inline_manifests(metadata)
    yield from _statistics(metadata)


def _statistics(metadata: Json) -> Iterator[Any]:
    for name in _STATISTICS:
        for one in metadata.get(name) or ():
            yield one.get("statistics-path")


def _checked(name: str, check: Callable[[str], T], value: str) -> T:
    try:
        return check(value)
    except Rejected as error:
        raise Rejected(f"property {name}: {error}") from error
