"""What files a table has, read through its manifests: for maintenance, which decides by it, and for retention.

    snapshot → its list of manifests → their entries → files with partition, offsets, times and sizes

Manifests and lists are never changed once they are written, so what was read of one stays true for ever; a bounded part
of it is kept. Whoever wrote them: any engine may have.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lakestream.catalog import manifest_schemas as f
from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests import DATA, DELETED, PARQUET, ManifestFile, read_entries, read_list
from lakestream.catalog.next_offsets import main_of
from lakestream.catalog.shapes import Json
from lakestream.catalog.topic_layout import (
    FIRST_FREE_ID,
    OFFSET_ID,
    PARTITION_ID,
    RAW_VALUE_ID,
    SCHEMA_ID,
    TIMESTAMP_ID,
    VALUE_ID,
)
from lakestream.errors import Corrupt
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.together import together

READS_AT_ONCE: Final = 8
KEPT_FILES_MAX: Final = 200_000
"""Files of manifests that are remembered: some 100 MB."""
_MANIFEST_COST: Final = 4

POSITION_DELETES: Final = 1
UNKNOWN_PARTITION: Final = -1
"""Of a file with rows of several partitions, or of nobody knows which."""
_VALUES: Final = (VALUE_ID, SCHEMA_ID, RAW_VALUE_ID)
"""A row has a value if it has something in one of these."""
_PATH_ID: Final = 2147483546
"""The column of a position delete file that says which data file it is about."""
_REFERENCED_FILE: Final = 143


class LiveFile(NamedTuple):
    """A file that a snapshot names. Bounds are inclusive; None: nobody wrote them down."""

    location: str
    content: int
    is_parquet: bool
    spec_id: int
    partition: int
    """Of the stream; UNKNOWN_PARTITION: not all of one."""
    offset_first: int | None
    offset_last: int | None
    newest_ms: int | None
    """The newest timestamp in it; None also where some row has none that fits."""
    oldest_ms: int | None
    record_count: int
    size: int
    sequence_number: int
    tombstones: int | None
    """Rows without a value; of typed values, no more than these."""
    about: str | None
    """Of deletes: the one data file that they are about, where that is known."""
    more_columns: frozenset[int] = frozenset()
    """Others than the stream's own, as far as its statistics tell: typed ones, or such that somebody else has added."""
    values: tuple[tuple[int, Any], ...] = ()
    """What its rows have in common by its partition spec: by field of that, as manifests keep it."""


class Manifest(NamedTuple):
    """What is remembered of one."""

    files: tuple[LiveFile, ...]
    """That are alive in it."""
    named: tuple[str, ...]
    """All that it names, also those that its commit took out."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a table at one snapshot."""

    data: tuple[LiveFile, ...] = ()
    deletes: tuple[LiveFile, ...] = ()


class Listings:
    """Reads, and remembers."""

    def __init__(self, objects: ObjectStore, locations: Locations) -> None:
        self._objects = objects
        self._locations = locations
        self._lists: OrderedDict[str, list[ManifestFile]] = OrderedDict()
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._weight = 0

    async def of_main(self, metadata: Json) -> Listing:
        main = main_of(metadata)
        location = next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == main), None)
        if location is None:
            return Listing()
        listed = [manifest for manifest in await self.manifests(location) if manifest.live_files_count]
        places = partition_fields(metadata)
        found = await together([self.manifest(manifest, places) for manifest in listed], READS_AT_ONCE)
        files = [file for manifest in found for file in manifest.files]
        return Listing(
            tuple(file for file in files if file.content == DATA), tuple(file for file in files if file.content != DATA)
        )

    async def manifests(self, list_location: str) -> list[ManifestFile]:
        if (known := self._lists.get(list_location)) is not None:
            self._lists.move_to_end(list_location)
            return known
        found = read_list(await self._get(list_location), list_location)
        self._lists[list_location] = found
        self._weight += _MANIFEST_COST * len(found)
        self._forget()
        return found

    async def manifest(self, manifest: ManifestFile, places: Mapping[int, int]) -> Manifest:
        """`places`: see `partition_fields`."""
        location = manifest.manifest_path
        if (known := self._manifests.get(location)) is not None:
            self._manifests.move_to_end(location)
            return known
        entries = list(read_entries(await self._get(location), location))
        found = _manifest(manifest, entries, places.get(manifest.partition_spec_id))
        self._manifests[location] = found
        self._weight += len(found.named)
        self._forget()
        return found

    def _forget(self) -> None:
        while self._weight > KEPT_FILES_MAX and (self._manifests or self._lists):
            if len(self._lists) > 1:
                self._weight -= _MANIFEST_COST * len(self._lists.popitem(last=False)[1])
            elif self._manifests:
                self._weight -= len(self._manifests.popitem(last=False)[1].named)
            else:
                return

    async def _get(self, location: str) -> bytes:
        return bytes(await self._objects.get(self._locations.key_of(location)))


def partition_fields(metadata: Json) -> dict[int, int]:
    """By partition spec: the field of it that is the stream's partition as it is, where one is."""
    return {
        spec["spec-id"]: field["field-id"]
        for spec in metadata["partition-specs"]
        for field in spec["fields"]
        if field.get("source-id") == PARTITION_ID and field.get("transform") == "identity"
    }


def by_partition(files: Iterable[LiveFile]) -> dict[int, list[LiveFile]]:
    """Those whose partition and offsets are known, by offset."""
    found: dict[int, list[LiveFile]] = {}
    for file in files:
        if file.partition != UNKNOWN_PARTITION and file.offset_first is not None and file.offset_last is not None:
            found.setdefault(file.partition, []).append(file)
    for own in found.values():
        own.sort(key=lambda file: (file.offset_first or 0, file.offset_last or 0))
    return found


def _manifest(manifest: ManifestFile, entries: list[dict[int, Any]], place: int | None) -> Manifest:
    alive = [entry for entry in entries if entry[f.STATUS] != DELETED]
    return Manifest(
        tuple(_file(manifest, entry, place) for entry in alive),
        tuple(entry[f.DATA_FILE][f.FILE_PATH] for entry in entries),
    )


def _file(manifest: ManifestFile, entry: dict[int, Any], place: int | None) -> LiveFile:
    data = entry[f.DATA_FILE]
    lower, upper = data.get(f.LOWER_BOUNDS) or {}, data.get(f.UPPER_BOUNDS) or {}
    nulls = data.get(f.NULL_COUNTS) or {}
    sequence_number = entry.get(f.SEQUENCE_NUMBER)
    timed = nulls.get(TIMESTAMP_ID) == 0
    return LiveFile(
        location=data[f.FILE_PATH],
        content=data.get(f.CONTENT) or DATA,
        is_parquet=str(data.get(f.FILE_FORMAT, PARQUET)).upper() == PARQUET,
        spec_id=manifest.partition_spec_id,
        partition=_partition(data, lower, upper, place),
        offset_first=_number(lower.get(OFFSET_ID)),
        offset_last=_number(upper.get(OFFSET_ID)),
        newest_ms=_milliseconds(upper.get(TIMESTAMP_ID)) if timed else None,
        oldest_ms=_milliseconds(lower.get(TIMESTAMP_ID)) if timed else None,
        record_count=data[f.RECORD_COUNT],
        size=data[f.FILE_SIZE],
        sequence_number=manifest.sequence_number if sequence_number is None else sequence_number,
        tombstones=min((nulls[number] for number in _VALUES if number in nulls), default=None),
        about=_about(data, lower, upper),
        more_columns=_more_columns(tuple(data.get(f.COLUMN_SIZES) or data.get(f.VALUE_COUNTS) or ())),
        values=tuple(sorted(data[f.PARTITION].items(), key=lambda item: item[0])),
    )


@lru_cache(maxsize=1_000)
def _more_columns(numbers: tuple[int, ...]) -> frozenset[int]:
    """Most files of a table have the same, and need them only once."""
    return frozenset(number for number in numbers if number >= FIRST_FREE_ID)


def _partition(data: dict[int, Any], lower: dict[int, bytes], upper: dict[int, bytes], place: int | None) -> int:
    if place is not None and data[f.PARTITION].get(place) is not None:
        return int(data[f.PARTITION][place])
    low, high = _number(lower.get(PARTITION_ID)), _number(upper.get(PARTITION_ID))
    return UNKNOWN_PARTITION if low is None or low != high else low


def _about(data: dict[int, Any], lower: dict[int, bytes], upper: dict[int, bytes]) -> str | None:
    if data.get(_REFERENCED_FILE):
        return str(data[_REFERENCED_FILE])
    path = lower.get(_PATH_ID)
    return path.decode(errors="replace") if path is not None and path == upper.get(_PATH_ID) else None


def _number(bound: bytes | None) -> int | None:
    if bound is None:
        return None
    if len(bound) not in (4, 8):
        raise Corrupt(f"a bound of a number has {len(bound)} bytes")
    return int.from_bytes(bound, "little", signed=True)


def _milliseconds(bound: bytes | None) -> int | None:
    microseconds = _number(bound)
    return None if microseconds is None else microseconds // 1000
