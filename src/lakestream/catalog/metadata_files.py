"""Writes and reads metadata files. They are immutable and have unique names; reads go through a bounded cache.

They are `metadata/NNNNN-uuid.metadata.json` in the table's folder, as Iceberg's writers name them, plain or gzip. The
cache keeps bytes, not objects: parsing a thousand snapshots takes some milliseconds, parsed ones take ten times the
memory, and a response to a client needs only the bytes.
"""

import asyncio
import gzip
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec

from lakestream.catalog.commit_checks.metadata_paths import metadata_folder
from lakestream.catalog.locations import Locations
from lakestream.catalog.table_metadata.json_model import Json, file_json, normalised
from lakestream.clock import Ids
from lakestream.errors import Corrupt, Missing, Rejected
from lakestream.json_values import has_more_values, is_nested_too_deeply
from lakestream.model import Buffer, KiB, MiB
from lakestream.storage.object_store import ObjectStore

FILE_BYTES_MAX: Final = 64 * MiB
CACHE_BYTES_MAX: Final = 16 * MiB
FOREIGN_BYTES_MAX: Final = 32 * MiB
"""Of a file that a client names, decompressed."""
FOREIGN_VALUES_MAX: Final = 500_000
"""Of such a file: parsing them takes a second, in which no other thread runs. A snapshot has about 25."""
CLIENT_VALUES_MAX: Final = 1_000_000
"""Of metadata that a client's commit makes larger: every load parses them."""
THREAD_BYTES_MIN: Final = MiB
"""Files from this size on are compressed in a thread."""
PACKED_BYTES_MIN: Final = 4 * KiB
"""Files from this size on are decompressed in a thread: gzip may decompress to a thousand times as much."""

COMPRESSION: Final = "write.metadata.compression-codec"

METADATA_SUFFIX: Final = ".metadata.json"

_GROWING: Final = {"snapshots", "snapshot-log", "metadata-log", "statistics", "partition-statistics"}
_GZIP: Final = b"\x1f\x8b"
_NUMBERED: Final = re.compile(r"(\d{1,9})-[^/]*")


class MetadataFile:
    def __init__(self, location: str, raw: Buffer, on_damage: Callable[[str], None] | None = None) -> None:
        self.location = location
        self.raw = raw
        self._on_damage = on_damage

    @cached_property
    def content(self) -> Json:
        """The parsed metadata. Callers must not change it."""
        try:
            return normalised(msgspec.json.decode(self.raw, type=Json))
        except (msgspec.DecodeError, UnicodeDecodeError, Rejected, RecursionError) as error:
            raise self.damaged(error) from error

    def without_snapshots(self) -> Json:
        """Parses the metadata without its snapshots and logs, which takes a twentieth of the time if they are many."""
        try:
            fields = msgspec.json.decode(self.raw, type=dict[str, msgspec.Raw])
            return normalised({name: msgspec.json.decode(fields[name]) for name in fields.keys() - _GROWING})
        except (msgspec.DecodeError, UnicodeDecodeError, Rejected, RecursionError) as error:
            raise self.damaged(error) from error

    def damaged(self, reason: object) -> Corrupt:
        """Evicts the file from the cache, so that a repaired one is read, and returns the error to raise."""
        if self._on_damage is not None:
            self._on_damage(self.location)
        return Corrupt(f"{self.location} is damaged: {reason}")


class MetadataFiles:
    def __init__(self, objects: ObjectStore, locations: Locations, ids: Ids) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._cache: OrderedDict[str, Buffer] = OrderedDict()
        self._cached_bytes = 0
        self._parsing_large = asyncio.Semaphore(1)  # parsed, a file takes up to thirty times its size

    async def read(self, location: str, *, parse: bool = False) -> MetadataFile:
        """Reads a file. Corrupt: it is missing. `parse`: a large one is parsed now, in a thread; then Corrupt also if
        it is damaged."""
        file = MetadataFile(location, await self._raw(location), self._evict)
        if parse and len(file.raw) >= THREAD_BYTES_MIN:
            async with self._parsing_large:
                await asyncio.to_thread(lambda: file.content)
        return file

    async def _raw(self, location: str) -> Buffer:
        if (raw := self._cache.get(location)) is not None:
            self._cache.move_to_end(location)
            return raw
        try:
            stored = await self._objects.get(self._locations.key_of(location))
        except Missing as error:
            raise Corrupt(
                f"{location}, the current metadata file of a table, is missing: restore it from a backup"
            ) from error
        in_thread = len(stored) >= PACKED_BYTES_MIN and _is_packed(stored)
        raw = await asyncio.to_thread(_decompressed, location, stored) if in_thread else _decompressed(location, stored)
        self._cache_raw(location, raw)
        return raw

    async def read_foreign(self, location: str, *, of_client: bool) -> MetadataFile:
        """Reads and parses a file that is registered. Rejected: it is missing, too large or not a metadata file.

        `of_client`: with the limits for clients. An operator may register every file that Lakestream writes.
        """
        bytes_max = FOREIGN_BYTES_MAX if of_client else FILE_BYTES_MAX
        key = self._locations.key_of(location)
        if not key.endswith(METADATA_SUFFIX):
            raise Rejected(f"{location[:200]} is not named like a metadata file: …metadata.json")
        try:
            if (size := (await self._objects.head(key)).size) > bytes_max:
                raise Rejected(f"{location[:200]} has {size} bytes: metadata files have at most {bytes_max}")
            stored = await self._objects.get(key)
            return await asyncio.to_thread(_parsed, self._locations.url_of(key), stored, bytes_max, of_client)
        except Missing as error:
            raise Rejected(f"there is no file {location[:200]}") from error
        except Corrupt as error:
            raise Rejected(str(error)) from error

    async def write(self, content: Json, previous: MetadataFile | None, *, of_client: bool = False) -> MetadataFile:
        """Writes the next metadata file of a table, after `previous`.

        `of_client`: with the limit of values for commits of clients, unless the commit makes the metadata smaller.
        """
        if of_client:
            raw = await asyncio.to_thread(_encoded_of_client, content, previous)
        else:
            raw = _encoded(content)
        packed = content["properties"].get(COMPRESSION, "").lower() == "gzip"
        location = self._next_location(content, previous, ".gz" if packed else "")
        body = raw
        if packed:
            in_thread = len(raw) >= THREAD_BYTES_MIN
            body = await asyncio.to_thread(_compressed, raw) if in_thread else _compressed(raw)
        await self._objects.create(self._locations.key_of(location), [body])
        self._cache_raw(location, raw)
        return MetadataFile(location, raw)

    async def make_folder(self, table_location: str) -> None:
        """Creates the metadata folder on a local disk.

        DuckDB creates no folders when it writes into a staged table. Writing and deleting an object leaves the folder.
        """
        if self._locations.scheme == "file":
            key = self._locations.key_of(f"{table_location}/metadata/{self._ids.new()}.staged")
            await self._objects.create(key, [b""])
            await self._objects.delete([key])

    async def remove(self, locations: list[str]) -> None:
        for location in locations:
            self._evict(location)
        await self._objects.delete([self._locations.key_of(location) for location in locations])

    def _evict(self, location: str) -> None:
        """Also called for a damaged file, so that a repaired one is read."""
        if (raw := self._cache.pop(location, None)) is not None:
            self._cached_bytes -= len(raw)

    def _next_location(self, content: Json, previous: MetadataFile | None, suffix: str) -> str:
        folder = metadata_folder(self._locations.table(content["location"]), content)
        number = 0 if previous is None else _number_of(previous.location) + 1
        return f"{folder}/{number:05d}-{dashed(self._ids.new())}{suffix}{METADATA_SUFFIX}"

    def _cache_raw(self, location: str, raw: Buffer) -> None:
        if location in self._cache or len(raw) > CACHE_BYTES_MAX // 2:
            return
        self._cache[location] = raw
        self._cached_bytes += len(raw)
        while self._cached_bytes > CACHE_BYTES_MAX:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


def dashed(identity: str) -> str:
    """Formats 32 hex digits as a UUID."""
    return "-".join((identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:]))


def _number_of(location: str) -> int:
    found = _NUMBERED.fullmatch(location.rpartition("/")[2])
    return int(found.group(1)) if found else -1


def _parsed(location: str, stored: Buffer, bytes_max: int, of_client: bool) -> MetadataFile:
    """Runs in a thread. Corrupt: it is not metadata. Rejected: it has too many values."""
    raw = _decompressed(location, stored, bytes_max)
    if of_client and has_more_values(raw, FOREIGN_VALUES_MAX):
        raise Rejected(
            f"{location[:200]} has more than {FOREIGN_VALUES_MAX} values: expire snapshots, or let an operator register"
            " the table (lakestream table register)"
        )
    found = MetadataFile(location, raw)
    _ = found.content
    if is_nested_too_deeply(raw):
        raise Rejected(f"{location[:200]} is nested too deeply")
    return found


def _encoded(content: Json) -> bytes:
    raw = msgspec.json.encode(file_json(content))
    if len(raw) > FILE_BYTES_MAX:
        raise Rejected(
            f"the table's metadata would have {len(raw)} bytes, more than {FILE_BYTES_MAX}: expire snapshots"
        )
    return raw


def _encoded_of_client(content: Json, previous: MetadataFile | None) -> bytes:
    raw = _encoded(content)
    grows = previous is None or len(raw) > len(previous.raw)
    if grows and has_more_values(raw, CLIENT_VALUES_MAX):
        raise Rejected(f"the table's metadata would have more than {CLIENT_VALUES_MAX} values: expire snapshots")
    return raw


def _compressed(raw: bytes) -> bytes:
    return gzip.compress(raw, 6, mtime=0)


def _is_packed(stored: Buffer) -> bool:
    return bytes(stored[:2]) == _GZIP


def _decompressed(location: str, stored: Buffer, bytes_max: int = FILE_BYTES_MAX) -> Buffer:
    """Decompresses gzip, bounded by `bytes_max`: a few bytes may decompress to very many."""
    if not _is_packed(stored):
        return stored
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(stored, bytes_max + 1)
    except zlib.error as error:
        raise Corrupt(f"{location} is damaged: {error}") from error
    if len(raw) > bytes_max or not unpacker.eof:
        raise Corrupt(f"{location} is damaged, or decompresses to more than {bytes_max} bytes")
    return raw
