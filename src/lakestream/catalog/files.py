"""Metadata files: written once under a name of their own, never changed, read through a bounded cache.

They are `metadata/NNNNN-uuid.metadata.json` in the table's folder, as every Iceberg writer calls them, plain or gzip.
The cache keeps bytes, not objects: parsing a thousand snapshots takes some milliseconds, keeping them parsed takes ten
times the memory, and an answer to a client needs the bytes only.
"""

import gzip
import re
import zlib
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Final

import msgspec

from lakestream.catalog.locations import Locations
from lakestream.catalog.shapes import Json, normalised, written
from lakestream.clock import Ids
from lakestream.errors import Corrupt, Missing, Rejected
from lakestream.model import Buffer, MiB
from lakestream.storage.object_store import ObjectStore

FILE_BYTES_MAX: Final = 64 * MiB
CACHE_BYTES_MAX: Final = 16 * MiB

COMPRESSION: Final = "write.metadata.compression-codec"
FOLDER: Final = "write.metadata.path"

_GZIP: Final = b"\x1f\x8b"
_NUMBERED: Final = re.compile(r"(\d{1,9})-[^/]*")


class MetadataFile:
    def __init__(self, location: str, raw: Buffer, on_damage: Callable[[str], None] | None = None) -> None:
        self.location = location
        self.raw = raw
        self._on_damage = on_damage

    @cached_property
    def content(self) -> Json:
        """Not to be changed."""
        try:
            return normalised(msgspec.json.decode(self.raw, type=Json))
        except (msgspec.DecodeError, Rejected, RecursionError) as error:
            if self._on_damage is not None:
                self._on_damage(self.location)
            raise Corrupt(f"{self.location} is damaged: {error}") from error


class MetadataFiles:
    def __init__(self, objects: ObjectStore, locations: Locations, ids: Ids) -> None:
        self._objects = objects
        self._locations = locations
        self._ids = ids
        self._cache: OrderedDict[str, Buffer] = OrderedDict()
        self._cached_bytes = 0

    async def read(self, location: str) -> MetadataFile:
        if (raw := self._cache.get(location)) is not None:
            self._cache.move_to_end(location)
            return MetadataFile(location, raw, self._forget)
        try:
            stored = await self._objects.get(self._locations.key_of(location))
        except Missing as error:
            raise Corrupt(f"{location} is missing: somebody removed a table's newest metadata file") from error
        raw = _unpacked(location, stored)
        self._keep(location, raw)
        return MetadataFile(location, raw, self._forget)

    async def read_foreign(self, location: str) -> MetadataFile:
        """A file that somebody else names: it may be anything."""
        key = self._locations.key_of(location)
        if not key.endswith(".metadata.json"):
            raise Rejected(f"{location[:200]} is not called like a metadata file: …metadata.json")
        try:
            if (size := (await self._objects.head(key)).size) > FILE_BYTES_MAX:
                raise Rejected(f"{location[:200]} has {size} bytes: metadata files have at most {FILE_BYTES_MAX}")
            found = MetadataFile(self._locations.url_of(key), _unpacked(location, await self._objects.get(key)))
            _ = found.content
        except Missing as error:
            raise Rejected(f"there is no file {location[:200]}") from error
        except Corrupt as error:
            raise Rejected(str(error)) from error
        return found

    async def write(self, content: Json, previous: str | None) -> MetadataFile:
        """The next file of a table, after `previous`."""
        raw = msgspec.json.encode(written(content))
        if len(raw) > FILE_BYTES_MAX:
            raise Rejected(
                f"the table's metadata would have {len(raw)} bytes, more than {FILE_BYTES_MAX}: expire snapshots"
            )
        packed = content["properties"].get(COMPRESSION, "").lower() == "gzip"
        location = self._next_location(content, previous, ".gz" if packed else "")
        body = gzip.compress(raw, 6, mtime=0) if packed else raw
        await self._objects.create(self._locations.key_of(location), [body])
        self._keep(location, raw)
        return MetadataFile(location, raw)

    async def make_folder(self, table_location: str) -> None:
        """On a disk, have the folder before a table is there: DuckDB makes no folders when it writes into a staged
        table. An object that comes and goes leaves one."""
        if self._locations.scheme == "file":
            key = self._locations.key_of(f"{table_location}/metadata/{self._ids.new()}.staged")
            await self._objects.create(key, [b""])
            await self._objects.delete([key])

    async def remove(self, locations: list[str]) -> None:
        for location in locations:
            self._forget(location)
        await self._objects.delete([self._locations.key_of(location) for location in locations])

    def _forget(self, location: str) -> None:
        """Also what turned out to be damaged: somebody may mend the file."""
        if (raw := self._cache.pop(location, None)) is not None:
            self._cached_bytes -= len(raw)

    def _next_location(self, content: Json, previous: str | None, suffix: str) -> str:
        asked = content["properties"].get(FOLDER, "")
        folder = self._locations.check_table_location(asked or f"{content['location']}/metadata")
        number = 0 if previous is None else _number_of(previous) + 1
        return f"{folder}/{number:05d}-{dashed(self._ids.new())}{suffix}.metadata.json"

    def _keep(self, location: str, raw: Buffer) -> None:
        if location in self._cache or len(raw) > CACHE_BYTES_MAX // 2:
            return
        self._cache[location] = raw
        self._cached_bytes += len(raw)
        while self._cached_bytes > CACHE_BYTES_MAX:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= len(dropped)


def dashed(identity: str) -> str:
    """32 hex digits as UUIDs are written."""
    return "-".join((identity[:8], identity[8:12], identity[12:16], identity[16:20], identity[20:]))


def _number_of(location: str) -> int:
    found = _NUMBERED.fullmatch(location.rpartition("/")[2])
    return int(found.group(1)) if found else -1


def _unpacked(location: str, stored: Buffer) -> Buffer:
    """Bounded: a few bytes of gzip can stand for very many."""
    if bytes(stored[:2]) != _GZIP:
        return stored
    unpacker = zlib.decompressobj(wbits=31)
    try:
        raw = unpacker.decompress(stored, FILE_BYTES_MAX + 1)
    except zlib.error as error:
        raise Corrupt(f"{location} is damaged: {error}") from error
    if len(raw) > FILE_BYTES_MAX or not unpacker.eof:
        raise Corrupt(f"{location} is damaged, or unpacks to more than {FILE_BYTES_MAX} bytes")
    return raw
