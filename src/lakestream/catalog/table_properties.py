"""Properties of a topic's table: those that it is made with, and those that its topic asks for. Pure.

`lakestream.table.properties` is `name=value, name=value`; a comma in a value has a backslash in front. Whatever any
engine knows can be said. What belongs to us, or would make files that the stream cannot be read from, is refused.
"""

import re
from collections.abc import Mapping
from typing import Final

from lakestream.model import MiB

DEFAULTS: Final[Mapping[str, str]] = {
    "write.parquet.compression-codec": "zstd",
    # Whoever rewrites the files: a consumer that wants one record has to read a whole row group.
    "write.parquet.row-group-size-bytes": str(32 * MiB),
    # We commit every few seconds. Others shall get a word in, and a delete shall not fail for rows that come after it.
    "commit.retry.num-retries": "20",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    # Or each commit would leave a metadata file for ever.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # For who expires snapshots with an engine too: as maintenance does. At a commit every five seconds that is 720.
    "history.expire.max-snapshot-age-ms": "3600000",
}

TEXT_MAX: Final = 20_000
_OURS: Final = ("lakestream.", "schema.name-mapping.")
_KEPT_ELSEWHERE: Final = frozenset(
    (
        "format-version",
        "uuid",
        "location",
        "snapshot-count",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    )
)
_PLACES: Final = frozenset(
    (
        "write.metadata.path",
        "write.data.path",
        "write.folder-storage.path",
        "write.object-storage.path",
        "write.object-storage.enabled",
        "write.location-provider.impl",
    )
)
_PARQUET_ONLY: Final = ("write.format.default", "write.delete.format.default")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "write.parquet.compression-codec": ("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"),
    "write.metadata.compression-codec": ("none", "gzip"),
    **dict.fromkeys(_PARQUET_ONLY, ("parquet",)),
}
_NUMBERS: Final = frozenset(
    (
        "write.target-file-size-bytes",
        "write.parquet.row-group-size-bytes",
        "write.parquet.page-size-bytes",
        "write.parquet.compression-level",
        "write.metadata.previous-versions-max",
        "history.expire.max-snapshot-age-ms",
        "history.expire.min-snapshots-to-keep",
        "history.expire.max-ref-age-ms",
    )
)


def properties_of(text: str) -> tuple[tuple[str, str], ...]:
    """ValueError: with what is wrong, and what to do."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"it has {len(text)} characters: {TEXT_MAX} at most")
    found: dict[str, str] = {}
    for piece in re.split(r"(?<!\\),", text):
        if not piece.strip():
            continue
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name:
            raise ValueError(f"{piece.strip()!r} is no property: write name=value, with a comma to the next")
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = value.replace("\\,", ",")
        _check(name, found[name])
    return tuple(sorted(found.items()))


def _check(name: str, value: str) -> None:
    if name.startswith(_OURS):
        raise ValueError(f"{name} belongs to Lakestream itself: leave it out")
    if name in _KEPT_ELSEWHERE:
        raise ValueError(f"{name} is no property that can be set: the table's metadata says it")
    if name in _PLACES:
        raise ValueError(f"{name} would put files where Lakestream does not look: leave it out")
    if (known := _CHOICES.get(name)) and value.lower() not in known:
        raise ValueError(f"{name} is {value!r}: choose {' or '.join(known)}")
    if name in _NUMBERS and not (value.isascii() and value.isdecimal() and 0 < len(value) < 20 and int(value) > 0):
        raise ValueError(f"{name} is {value!r}: give a whole number above 0")
