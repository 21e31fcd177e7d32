"""Where purged tables were, remembered for a day: somebody may still write there.

A driver that makes files of a topic does not see at once that the topic's table is purged. It removes them when its
commit finds no table; but if it is killed before that, nobody knows of them. So purge.py looks there once more.
"""

from typing import Final, NamedTuple

from lakestream.catalog.pointers import Table
from lakestream.errors import Corrupt
from lakestream.metadata import keys
from lakestream.metadata.store import ANY, Key, MetadataStore, put_one

LINGER_MS: Final = 24 * 60 * 60 * 1000
"""Whoever wrote there when it was purged has ended by then."""


class Grave(NamedTuple):
    key: Key
    location: str


class Graves:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def dig(self, table_id: str, table: Table) -> None:
        """Before the table's own record goes, so that one of both is always there."""
        await put_one(self._store, keys.purged_key(table_id, table.uuid), table.location.encode(), ANY)

    async def old(self) -> list[Grave]:
        """Those that nobody can be writing to any more, by the store's clock."""
        before_ms = await self._store.now_ms() - LINGER_MS
        found = (await self._store.scan(keys.PURGED)).records
        try:
            return [
                Grave(keys.PURGED.key(record.name), record.value.decode())
                for record in found
                if record.created_ms < before_ms
            ]
        except UnicodeDecodeError as error:
            raise Corrupt(f"a record under {keys.PURGED.path} is no place ({error}); remove it") from error

    async def fill_in(self, grave: Grave) -> None:
        await self._store.delete(grave.key)
