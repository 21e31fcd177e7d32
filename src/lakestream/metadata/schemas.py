"""The schema registry, as typed records over the metadata store.

Below: store.py, keys.py.  Above: coordination/schemas, which folds the changes and decides what the next one is.

The registry is a log of changes, `/schemas/log/{n}`, each created only if it is absent: that is the whole of the
agreement between brokers. A change is one record, so it is there as a whole or not at all. The text of a schema is
stored before the change that names it, under a name of its own: who dies in between leaves a text that nobody names.
"""

from typing import Any, Final

import msgspec

from lakestream.errors import Conflict, Corrupt, Uncertain
from lakestream.metadata import keys
from lakestream.metadata.store import ABSENT, ANY, MetadataStore, Record, put_one

FORMAT: Final = 1
AT_ONCE: Final = 1_000
TRIES_MAX: Final = 5


class Pointer(msgspec.Struct, frozen=True, array_like=True):
    """A reference as the registry keeps it: the schema `name` is this version of that subject."""

    name: str
    subject: str
    version: int


class NewSchema(msgspec.Struct, frozen=True):
    """A schema that gets an id."""

    format: str
    text_id: str
    digest: str
    """Of all that makes it what it is: the same digest is the same schema."""
    guid: str
    references: tuple[Pointer, ...] = ()


class Registered(msgspec.Struct, frozen=True, tag="registered"):
    subject: str
    version: int
    id: int
    schema: NewSchema | None = None
    """None: the id is known."""
    replaces: tuple[int, ...] = ()
    """Versions of the subject that go for it: deleted ones with the same id."""


class Deleted(msgspec.Struct, frozen=True, tag="deleted"):
    """Still to be had by id, and by who asks for deleted ones."""

    subject: str
    versions: tuple[int, ...]


class Removed(msgspec.Struct, frozen=True, tag="removed"):
    """Gone for good."""

    subject: str
    versions: tuple[int, ...]
    settings_too: bool = False


class Configured(msgspec.Struct, frozen=True, tag="configured"):
    subject: str
    """Empty: all; a context without a name behind it: that context."""
    config: dict[str, Any] | None
    """None: as if it had never been configured."""


class ModeSet(msgspec.Struct, frozen=True, tag="mode"):
    subjects: tuple[str, ...]
    mode: str | None
    removed: tuple[Removed, ...] = ()
    """Deleted versions that go before schemas are imported."""


class ContextRemoved(msgspec.Struct, frozen=True, tag="context_removed"):
    context: str


Change = Registered | Deleted | Removed | Configured | ModeSet | ContextRemoved


class Entry(msgspec.Struct, frozen=True):
    """A change in its place. `by` tells whose it is: no two tries with another content have the same."""

    by: str
    change: Change
    format: int = FORMAT


class StoredText(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None


_encode = msgspec.json.Encoder().encode
_decode_entry = msgspec.json.Decoder(Entry).decode
_decode_text = msgspec.json.Decoder(StoredText).decode


class SchemaLog:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def read(self, start: int) -> list[Change]:
        """The changes from the `start`-th on, all that there are."""
        found: list[Change] = []
        while page := await self.page(start + len(found)):
            found += page
        return found

    async def page(self, start: int, *, confirmed: bool = False) -> list[Change]:
        """The changes from the `start`-th on, at most AT_ONCE of them."""
        name = keys.schema_change_name(start)
        records = (await self._store.scan(keys.SCHEMA_LOG, name, limit=AT_ONCE, confirmed=confirmed)).records
        for number, record in enumerate(records, start):
            if record.name != keys.schema_change_name(number):
                raise Corrupt(f"metadata: change {number} of the schema registry is missing; restore it from a backup")
        return [_entry(record).change for record in records]

    async def append(self, number: int, change: Change, by: str) -> bool:
        """False: somebody else's is the `number`-th. `by`: never used before."""
        key, value = keys.schema_change_key(number), _encode(Entry(by=by, change=change))
        doubt = None
        for _ in range(TRIES_MAX):
            try:
                await put_one(self._store, key, value, ABSENT)
            except Conflict:
                there = await self._store.get(key, confirmed=True)
                return there is not None and _entry(there).by == by  # an answer that was lost may have been a yes
            except Uncertain as error:
                doubt = error
                continue  # the same once more: if the first took effect, this one meets it
            return True
        assert doubt is not None
        raise doubt

    async def put_text(self, text_id: str, text: StoredText) -> None:
        await put_one(self._store, keys.schema_text_key(text_id), _encode(text), ANY)

    async def text(self, text_id: str) -> StoredText | None:
        record = await self._store.get(keys.schema_text_key(text_id))
        if record is None:
            record = await self._store.get(keys.schema_text_key(text_id), confirmed=True)
        if record is None:
            return None
        try:
            return _decode_text(record.value)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corrupt(f"metadata record {record.path} is not a schema ({error}); restore it") from error

    async def remove_text(self, text_id: str) -> None:
        await self._store.delete(keys.schema_text_key(text_id))


def _entry(record: Record) -> Entry:
    try:
        entry = _decode_entry(record.value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"metadata record {record.path} is not a change of the schema registry ({error}); restore it from a backup"
        ) from error
    if entry.format > FORMAT:
        raise Corrupt(f"metadata record {record.path} is of a newer Lakestream (format {entry.format}): upgrade")
    return entry
