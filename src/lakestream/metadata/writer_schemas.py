"""Writer schemas: how values and keys of a topic with schemas were converted to columns. Records are immutable.

Written by the pipeline's driver, before any row has the number. Read by the driver, and by brokers that convert rows
back to bytes. Because records are immutable, brokers may cache them: a schema that is bound to other columns than
before is a new writer schema with its own number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lakestream.errors import Conflict, Missing
from lakestream.metadata import keys
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ABSENT, MetadataStore, Record, put_one
from lakestream.schemas.value_format import ValuePart
from lakestream.schemas.writer_schema import WriterSchema

PAGE_SIZE: Final = 100
"""Small, because records contain the text of schemas."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WriterSchema).decode


@dataclass(frozen=True, slots=True)
class TableWriters:
    """All writer schemas of a table, by number."""

    values: Mapping[int, WriterSchema]
    keys: Mapping[int, WriterSchema]

    def of(self, part: ValuePart) -> Mapping[int, WriterSchema]:
        return self.values if part is ValuePart.VALUE else self.keys


class Writers:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def all(self, topic_id: str, *, confirmed: bool = False) -> TableWriters:
        folder = keys.writers_folder(topic_id)
        values: dict[int, WriterSchema] = {}
        key_writers: dict[int, WriterSchema] = {}
        start = ""
        while True:
            records = (await self._store.scan(folder, start, limit=PAGE_SIZE, confirmed=confirmed)).records
            for record in records:
                writer = _writer(record)
                (key_writers if record.name.startswith(ValuePart.KEY.value) else values)[writer.number] = writer
            if len(records) < PAGE_SIZE:
                return TableWriters(values, key_writers)
            start = records[-1].name + keys.NEXT_NAME

    async def get(self, topic_id: str, number: int) -> WriterSchema:
        """Returns the writer schema of values with this number. Raises Missing if a confirmed read does not find it."""
        key = keys.writer_key(topic_id, ValuePart.VALUE.value, number)
        record = await self._store.get(key) or await self._store.get(key, confirmed=True)
        if record is None:
            raise Missing(f"metadata record {key.path} is missing: rows of its table cannot be converted to values")
        return _writer(record)

    async def create(self, topic_id: str, part: ValuePart, writer: WriterSchema) -> WriterSchema:
        """Stores a writer schema. Returns the stored one: another driver may have used the number before."""
        key = keys.writer_key(topic_id, part.value, writer.number)
        try:
            await put_one(self._store, key, _encode(writer), ABSENT)
        except Conflict:
            existing = await self._store.get(key, confirmed=True)
            if existing is None:
                raise
            return _writer(existing)
        return writer

    async def remove(self, topic_id: str) -> None:
        """Deletes all writer schemas of a table that is deleted."""
        folder = keys.writers_folder(topic_id)
        while records := (await self._store.scan(folder, limit=PAGE_SIZE)).records:
            for record in records:
                await self._store.delete(folder.key(record.name))


def _writer(record: Record) -> WriterSchema:
    return decode_record(record, _decode, "a writer schema")
