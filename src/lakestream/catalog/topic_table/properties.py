"""Properties of a topic's table: the defaults, and those of the topic's settings. Pure.

`lakestream.table.properties` is `name=value, name=value`; a comma in a value is escaped with a backslash. Any property
of an engine is allowed. Lakestream's own properties are rejected, and those with which records could not be read.

`lakestream.bound-columns` keeps the ids of the columns from which values are restored: `16-30,33`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from lakestream.catalog.table_metadata.json_model import Json
from lakestream.model import MiB

DEFAULTS: Final[Mapping[str, str]] = {
    "write.parquet.compression-codec": "zstd",
    # For engines that rewrite files: to read one record, a consumer has to read a whole row group.
    "write.parquet.row-group-size-bytes": str(32 * MiB),
    # The pipeline commits every few seconds. Engines need retries, and deletes must not fail because of later appends.
    "commit.retry.num-retries": "20",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.merge.isolation-level": "snapshot",
    # Else each commit would leave a metadata file forever.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # For engines that expire snapshots: as maintenance does. With a commit every five seconds that is 720 snapshots.
    "history.expire.max-snapshot-age-ms": "3600000",
}

HAS_DELTA: Final = "lakestream.delta"
"""Set if a Delta table lists the same files: they must stay as long as it lists them."""

TEXT_MAX: Final = 20_000
_OURS: Final = ("lakestream.", "schema.name-mapping.")
_METADATA_FIELDS: Final = frozenset(
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
_LOCATION_PROPERTIES: Final = frozenset(
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
    """Parses the setting. ValueError: it is invalid; the message says what to do."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"it has {len(text)} characters: use at most {TEXT_MAX}")
    found: dict[str, str] = {}
    for piece in re.split(r"(?<!\\),", text):
        if not piece.strip():
            continue
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not name:
            raise ValueError(f"{piece.strip()!r} is not a property: write name=value, separated by commas")
        if name in found:
            raise ValueError(f"{name} is set twice: remove one")
        found[name] = value.replace("\\,", ",")
        _check(name, found[name])
    return tuple(sorted(found.items()))


def _check(name: str, value: str) -> None:
    if name.startswith(_OURS):
        raise ValueError(f"{name} is reserved for Lakestream: leave it out")
    if name in _METADATA_FIELDS:
        raise ValueError(f"{name} is a field of the table's metadata and cannot be set: leave it out")
    if name in _LOCATION_PROPERTIES:
        raise ValueError(f"{name} would put files where Lakestream does not read them: leave it out")
    if (known := _CHOICES.get(name)) and value.lower() not in known:
        raise ValueError(f"{name} is {value!r}: choose {' or '.join(known)}")
    if name in _NUMBERS and not (value.isascii() and value.isdecimal() and 0 < len(value) < 20 and int(value) > 0):
        raise ValueError(f"{name} is {value!r}: use a positive integer")


BOUND: Final = "lakestream.bound-columns"
IDS_MAX: Final = 100_000
_RANGES: Final = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


def bound_ids(metadata: Json) -> frozenset[int]:
    """Returns the ids of the property; none if it is not valid, for example because an engine changed it."""
    text = metadata["properties"].get(BOUND, "")
    if not _RANGES.fullmatch(text):
        return frozenset()
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first) + 1, int(first) + IDS_MAX - len(found))))
    return frozenset(found)


def text_of_ids(ids: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for one in sorted(ids):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)
