"""Schemas to look up, for whoever has a metadata store: brokers, and the driver of the pipeline.

The state is kept in memory and brought up to date by reading what was appended since. What belongs to an id never
changes, so it is given from memory; that something is not there is said only after a look at the store.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.coordination.schemas.names import parse
from lakestream.coordination.schemas.recent import Recent
from lakestream.coordination.schemas.refusals import InvalidSchema, NoSuchSchema
from lakestream.coordination.schemas.state import LATEST, State, Use
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.schemas import AT_ONCE, NewSchema, Pointer, SchemaLog, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.model import MiB
from lakestream.schemas.model import Format, Reference, Source

TEXT_BYTES_MAX: Final = 32 * MiB
REFERENCES_MAX: Final = 1_000
"""Of one schema, each counted as often as it is needed."""
DEPTH_MAX: Final = 32


class Shelved(NamedTuple):
    id: int
    source: Source


class SchemaShelf:
    """Every method answers with what was registered before it was called, whichever broker did it."""

    def __init__(self, store: MetadataStore) -> None:
        self.log = SchemaLog(store)
        self.state = State()
        self._texts: Recent[str, StoredText] = Recent(TEXT_BYTES_MAX)
        self._turn = asyncio.Lock()
        self._begun = 0
        self._good = 0
        self._good_confirmed = 0

    async def source_of(self, context: str, schema_id: int) -> Source:
        """The schema with an id; the default context is `.`. Missing: there is none, for certain."""
        try:
            return await self._source(context, schema_id)
        except Missing:
            await self.catch_up(confirmed=True)
            return await self._source(context, schema_id)

    async def latest(self, subject: str) -> Shelved:
        """Of a subject as users write it (`orders-value`, `:.trial:orders-value`). Missing: it has none."""
        return await self.version(subject, LATEST)

    async def version(self, subject: str, number: int) -> Shelved:
        await self.catch_up()
        try:
            return await self._version(subject, number)
        except Missing:
            await self.catch_up(confirmed=True)
            return await self._version(subject, number)

    async def _version(self, subject: str, number: int) -> Shelved:
        named = parse(subject)
        found = self.state.version(named, number).id
        return Shelved(found, await self._source(named.context, found))

    async def _source(self, context: str, schema_id: int) -> Source:
        schema = self.state.schema(context, schema_id)
        text = await self.text(context, schema_id)
        return Source(Format(schema.format), text.text, await self.resolved(context, schema.references))

    # ── for the registry ─────────────────────────────────────────────────────────────────────────────────────────────

    async def catch_up(self, *, confirmed: bool = False) -> None:
        """Read what was appended. Those who come while a look is under way share the next one."""
        came = self._begun
        async with self._turn:
            if (self._good_confirmed if confirmed else self._good) > came:
                return
            self._begun += 1
            begun = self._begun
            while await self._turn_page(confirmed=confirmed):
                pass
            self._good = begun
            if confirmed:
                self._good_confirmed = begun

    async def _turn_page(self, *, confirmed: bool) -> bool:
        """False: there is no more."""
        start = self.state.end
        changes = await self.log.page(start, confirmed=confirmed)
        for change in changes[self.state.end - start :]:  # what we appended ourselves meanwhile is known
            self.state.apply(change)
        return len(changes) == AT_ONCE

    async def text(self, context: str, schema_id: int) -> StoredText:
        schema = self.state.schema(context, schema_id)
        return await self.text_of(context, schema_id, schema)

    async def text_of(self, context: str, schema_id: int, schema: NewSchema) -> StoredText:
        if (text := self._texts.get(schema.text_id)) is not None:
            return text
        text = await self.log.text(schema.text_id)
        if text is None:
            await self.catch_up(confirmed=True)
            if self.state.schema(context, schema_id).text_id == schema.text_id:
                raise Corrupt(f"metadata: the text of schema {schema_id} in {context} is missing; restore it")
            raise NoSuchSchema(f"Schema {schema_id} not found")
        self._texts.put(schema.text_id, text, len(text.text))
        return text

    async def resolved(self, context: str, pointers: Sequence[Pointer]) -> tuple[Reference, ...]:
        """References with their texts. InvalidSchema: one is missing, leads back to itself, or there are too many."""
        return (await _Resolving(self).all(context, pointers)).below


class _Resolving:
    """The references of one schema. What several need is read once."""

    def __init__(self, shelf: SchemaShelf) -> None:
        self._shelf = shelf
        self._found: dict[Use, _Resolved] = {}

    async def all(self, context: str, pointers: Sequence[Pointer], path: tuple[Use, ...] = ()) -> "_Resolved":
        found = [(pointer, await self._one(context, pointer, path)) for pointer in pointers]
        count = sum(1 + one.size for _, one in found)
        if count > REFERENCES_MAX:
            raise InvalidSchema(f"a schema may refer to {REFERENCES_MAX} others at most, however it comes to them")
        return _Resolved("", tuple(Reference(pointer.name, one.text, one.below) for pointer, one in found), count)

    async def _one(self, context: str, pointer: Pointer, path: tuple[Use, ...]) -> "_Resolved":
        subject = parse(pointer.subject, context)
        use = Use(str(subject), pointer.version)
        if use in path:
            raise InvalidSchema(f"reference {pointer.name!r} leads back to itself: {_spelled((*path, use))}")
        if len(path) >= DEPTH_MAX:
            raise InvalidSchema(f"references may be {DEPTH_MAX} deep at most: {_spelled(path[:3])} → …")
        if use not in self._found:
            state = self._shelf.state
            try:
                schema_id = state.version(subject, pointer.version, deleted=True).id
                schema = state.schema(subject.context, schema_id)
                text = await self._shelf.text(subject.context, schema_id)
            except Missing as error:
                said = f"reference {pointer.name!r} to version {pointer.version} of {subject}"
                raise InvalidSchema(f"{said}: there is none ({error})") from error
            below = await self.all(subject.context, schema.references, (*path, use))
            self._found[use] = below._replace(text=text.text)
        return self._found[use]


class _Resolved(NamedTuple):
    text: str
    below: tuple[Reference, ...]
    size: int
    """Of all below, each as often as it is needed."""


def _spelled(path: tuple[Use, ...]) -> str:
    return " → ".join(f"{use.subject} version {use.version}" for use in path)
