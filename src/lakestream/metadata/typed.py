"""How the values and keys of a typed table became columns: one record for each writer, which never changes.

Written by: the pipeline's driver, before any row says the number.  Read by: it, and by brokers that make bytes of rows
again. That a record never changes is what lets brokers keep what they have read: a schema that is bound to other
columns than before is another writer, with a number of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakestream.errors import Conflict, Corrupt, Missing
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one
from lakestream.schemas.typing import Part
from lakestream.schemas.writers import Writer

AT_ONCE: Final = 100
"""They hold the text of schemas."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Writer).decode


@dataclass(frozen=True, slots=True)
class TableWriters:
    """All of a table, by number."""

    values: Mapping[int, Writer]
    keys: Mapping[int, Writer]

    def of(self, part: Part) -> Mapping[int, Writer]:
        return self.values if part is Part.VALUE else self.keys


class Writers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters:
        folder = keys.writers_folder(topic_id)
        values: dict[int, Writer] = {}
        own_keys: dict[int, Writer] = {}
        start = ""
        while True:
            records = (await self._store.scan(folder, start, limit=AT_ONCE, confirmed=confirmed)).records
            for record in records:
                writer = _writer(record)
                (own_keys if record.name.startswith(Part.KEY.value) else values)[writer.number] = writer
            if len(records) < AT_ONCE:
                return TableWriters(values, own_keys)
            start = records[-1].name + keys.NEXT_NAME

    async def get(self, topic_id: str, number: int) -> Writer:
        """Of values. Missing: there is none, for certain."""
        key = keys.writer_key(topic_id, Part.VALUE.value, number)
        record = await self._store.get(key) or await self._store.get(key, confirmed=True)
        if record is None:
            raise Missing(f"metadata record {key.path} is missing, without which rows of a typed table are no values")
        return _writer(record)

    async def create(self, topic_id: str, part: Part, writer: Writer) -> Writer:
        """The one that has the number then: this, or what somebody else gave it to before."""
        key = keys.writer_key(topic_id, part.value, writer.number)
        try:
            await put_one(self._store, key, _encode(writer), ABSENT)
        except Conflict:
            there = await self._store.get(key, confirmed=True)
            if there is None:
                raise
            return _writer(there)
        return writer

    async def remove(self, topic_id: str) -> None:
        """With the table."""
        folder = keys.writers_folder(topic_id)
        while records := (await self._store.scan(folder, limit=AT_ONCE)).records:
            for record in records:
                await self._store.delete(folder.key(record.name))


def _writer(record: Record) -> Writer:
    try:
        return _decode(record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"metadata record {record.path} is not a writer ({error}); restore it from a backup") from error
