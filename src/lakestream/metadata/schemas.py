"""Records of the schema registry in the metadata store.

Below: store.py, keys.py.  Above: coordination/schema_registry, which applies the changes and decides the next one.

The registry is a log of changes, `/schemas/log/{n}`. Each is created only if it is absent, which is how brokers agree
on their order. A change is one record, so it is atomic. The text of a schema is stored before the change that refers to
it, under its own name: a broker that fails in between leaves a text without references.
"""

from typing import Any, Final

import msgspec

from lakestream.errors import Conflict, Corrupt, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.codec import check_format, decode_record
from lakestream.metadata.store import ABSENT, ANY, MetadataStore, Record, put_one

FORMAT: Final = 1
PAGE_SIZE: Final = 1_000
TRIES_MAX: Final = 5


class Pointer(msgspec.Struct, frozen=True, array_like=True):
    """A reference of a schema: `name` is this version of that subject."""

    name: str
    subject: str
    version: int


class NewSchema(msgspec.Struct, frozen=True):
    """A schema that gets a new id."""

    format: str
    text_id: str
    digest: str
    """Digest of everything that identifies the schema: equal digests are equal schemas."""
    guid: str
    references: tuple[Pointer, ...] = ()
    size: int = 0
    """Bytes of its text and of everything registered with it. 0: it was registered before sizes were stored."""


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    subject: str
    version: int
    id: int
    schema: NewSchema | None = None
    """None if the id already exists."""
    replaces: tuple[int, ...] = ()
    """Deleted versions of the subject with the same id, which it replaces."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """Soft delete: still available by id, and in requests for deleted versions."""

    subject: str
    versions: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """Permanent delete."""

    subject: str
    versions: tuple[int, ...]
    settings_too: bool = False


class Configured(msgspec.Struct, frozen=True, tag="configured"):
    subject: str
    """Empty: the global configuration. A context without a subject name: that context."""
    config: dict[str, Any] | None
    """None resets the configuration."""


class ModeSet(msgspec.Struct, frozen=True, tag="mode"):
    subjects: tuple[str, ...]
    mode: str | None
    removed: tuple[Removed, ...] = ()
    """Deleted versions that are removed before schemas are imported."""


class ContextRemoved(msgspec.Struct, frozen=True, tag="context_removed"):
    context: str


Change = Registered | Deleted | Removed | Configured | ModeSet | ContextRemoved


class LogEntry(msgspec.Struct, frozen=True):
    """A change at its position in the log. `by` identifies its writer: attempts with other content have another one."""

    by: str
    change: Change
    format: int = FORMAT


class StoredText(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


_encode = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(LogEntry).decode
_decode_text = msgspec.json.Decoder(StoredText).decode


class SchemaLog:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, start: int) -> list[Change]:
        """Returns all changes from number `start` on."""
        changes: list[Change] = []
        while page := await self.page(start + len(changes)):
            changes += page
        return changes

    async def page(self, start: int, *, confirmed: bool = False) -> list[Change]:
        """Returns at most PAGE_SIZE changes from number `start` on."""
        name = keys.schema_change_name(start)
        records = (await self._store.scan(keys.SCHEMA_LOG, name, limit=PAGE_SIZE, confirmed=confirmed)).records
        for number, record in enumerate(records, start):
            if record.name != keys.schema_change_name(number):
                raise Corrupt(f"metadata: change {number} of the schema registry is missing: restore it from a backup")
        return [_entry(record).change for record in records]

    async def append(self, number: int, change: Change, by: str) -> bool:
        """Appends a change. Returns False if another writer has taken the number. `by` must be unique."""
        key, value = keys.schema_change_key(number), _encode(LogEntry(by=by, change=change))
        uncertain = None
        for _ in range(TRIES_MAX):
            try:
                await put_one(self._store, key, value, ABSENT)
            except Conflict:
                existing = await self._store.get(key, confirmed=True)
                return existing is not None and _entry(existing).by == by  # maybe an earlier attempt of this call
            except Uncertain as error:
                uncertain = error
                continue  # if this attempt took effect, the next one conflicts with it
            return True
        assert uncertain is not None
        raise uncertain

    async def put_text(self, text_id: str, text: StoredText) -> None:
        await put_one(self._store, keys.schema_text_key(text_id), _encode(text), ANY)

    async def text(self, text_id: str) -> StoredText | None:
        key = keys.schema_text_key(text_id)
        record = await self._store.get(key) or await self._store.get(key, confirmed=True)
        return None if record is None else decode_record(record, _decode_text, "a schema")

    async def remove_text(self, text_id: str) -> None:
        await self._store.delete(keys.schema_text_key(text_id))


def _entry(record: Record) -> LogEntry:
    entry = decode_record(record, _decode_entry, "a change of the schema registry")
    check_format(record, entry.format, FORMAT)
    return entry
