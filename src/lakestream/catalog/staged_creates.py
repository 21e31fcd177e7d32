"""Locations of staged tables.

A client that stages a create writes data before it commits the create, so the folder is not empty at the commit. The
record of the staged create shows that the folder was empty before. Without it any folder could be taken, and purged.
"""

from typing import Final

from lakestream.metadata import keys
from lakestream.metadata.store import ANY, MetadataStore, put_one

STAGED_MS: Final = 7 * 24 * 60 * 60 * 1000
"""How long a client may take to write the data of its new table."""


class StagedTables:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def add(self, uuid: str, location: str) -> None:
        await put_one(self._store, keys.staged_key(uuid), location.encode(), ANY)

    async def has(self, uuid: str, location: str) -> bool:
        """Returns whether a create with this UUID was staged at this location."""
        record = await self._store.get(keys.staged_key(uuid), confirmed=True)
        return record is not None and record.value == location.encode()

    async def all(self) -> list[tuple[str, str]]:
        """Returns UUIDs and locations."""
        return [(record.name, record.value.decode()) for record in (await self._store.scan(keys.STAGED)).records]

    async def remove(self, uuid: str) -> None:
        await self._store.delete(keys.staged_key(uuid))

    async def remove_expired(self, now_ms: int) -> None:
        """Removes the records of creates that were never committed."""
        for record in (await self._store.scan(keys.STAGED)).records:
            if record.created_ms < now_ms - STAGED_MS:
                await self._store.delete(keys.STAGED.key(record.name))
