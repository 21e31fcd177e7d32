"""Reads schemas from the metadata store, for brokers and the driver of the pipeline.

The state is cached, and refreshed by reading the changes appended since. The schema of an id never changes, so it is
returned from memory. An error for a missing schema is raised only after a confirmed read of the store.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.aio.cache import LruCache
from lakestream.coordination.schema_registry.errors import InvalidSchema, NoSuchSchema
from lakestream.coordination.schema_registry.state import LATEST, State, SubjectVersion
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.errors import Corrupt, Missing
from lakestream.metadata.schemas import PAGE_SIZE, NewSchema, Pointer, SchemaLog, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.model import MiB
from lakestream.schemas.model import Format, Reference, Source

TEXT_BYTES_MAX: Final = 32 * MiB
REFERENCES_MAX: Final = 1_000
"""Of one schema, each counted as often as it is referenced."""
DEPTH_MAX: Final = 32
SOURCE_SIZE_MAX: Final = 16 * MiB
"""Characters of all references of one schema, each counted as often as it is referenced."""


class RegisteredSchema(NamedTuple):
    id: int
    source: Source


class SchemaReader:
    """Every method returns schemas registered before the call, by any broker."""

    def __init__(self, store: MetadataStore) -> None:
        self.log = SchemaLog(store)
        self.state = State()
        self._texts: LruCache[str, StoredText] = LruCache(TEXT_BYTES_MAX, keep_newest=True)
        self._lock = asyncio.Lock()
        self._started = 0
        """Number of reads started; the next two are the numbers of the last successful reads."""
        self._last = 0
        self._last_confirmed = 0

    async def source_of(self, context: str, schema_id: int) -> Source:
        """Returns the schema of an id; the default context is `.`. Missing if a confirmed read does not find it."""
        try:
            return await self._source(context, schema_id)
        except Missing:
            await self.catch_up(confirmed=True)
            return await self._source(context, schema_id)

    async def latest(self, subject: str) -> RegisteredSchema:
        """Returns the latest version of a subject (`orders-value`, `:.trial:orders-value`). Missing if it has none."""
        return await self.version(subject, LATEST)

    async def version(self, subject: str, number: int) -> RegisteredSchema:
        await self.catch_up()
        try:
            return await self._version(subject, number)
        except Missing:
            await self.catch_up(confirmed=True)
            return await self._version(subject, number)

    async def _version(self, subject: str, number: int) -> RegisteredSchema:
        parsed = parse(subject)
        schema_id = self.state.version(parsed, number).id
        return RegisteredSchema(schema_id, await self._source(parsed.context, schema_id))

    async def _source(self, context: str, schema_id: int) -> Source:
        schema = self.state.schema(context, schema_id)
        text = await self.text(context, schema_id)
        return Source(Format(schema.format), text.text, await self.resolved(context, schema.references))

    # ── for the registry ─────────────────────────────────────────────────────────────────────────────────────────────

    async def catch_up(self, *, confirmed: bool = False) -> None:
        """Reads the appended changes. Calls that arrive during a read share the next one, because the running read may
        miss a change that they must see."""
        arrived_at = self._started
        async with self._lock:
            if (self._last_confirmed if confirmed else self._last) > arrived_at:
                return
            self._started += 1
            number = self._started
            while await self._read_page(confirmed=confirmed):
                pass
            self._last = number
            if confirmed:
                self._last_confirmed = number

    async def _read_page(self, *, confirmed: bool) -> bool:
        """Applies a page of changes, and returns whether there may be more."""
        start = self.state.end
        changes = await self.log.page(start, confirmed=confirmed)
        for change in changes[self.state.end - start :]:  # the rest was appended and applied by this broker meanwhile
            self.state.apply(change)
        return len(changes) == PAGE_SIZE

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
                raise Corrupt(f"metadata: the text of schema {schema_id} in context {context} is missing: restore it")
            raise NoSuchSchema(f"Schema {schema_id} not found")
        self._texts.put(schema.text_id, text, len(text.text))
        return text

    async def resolved(self, context: str, pointers: Sequence[Pointer]) -> tuple[Reference, ...]:
        """Returns references with their texts. InvalidSchema if one is missing or recursive, or there are too many."""
        return (await _Resolver(self).all(context, pointers)).below


class _Resolver:
    """Resolves the references of one schema. Each referenced version is read once."""

    def __init__(self, reader: SchemaReader) -> None:
        self._reader = reader
        self._resolved: dict[SubjectVersion, _Resolved] = {}

    async def all(
        self, context: str, pointers: Sequence[Pointer], path: tuple[SubjectVersion, ...] = ()
    ) -> "_Resolved":
        resolved = [(pointer, await self._resolve_pointer(context, pointer, path)) for pointer in pointers]
        count = sum(1 + one.total for _, one in resolved)
        if count > REFERENCES_MAX:
            raise InvalidSchema(
                f"the schema has {count} direct and indirect references: at most {REFERENCES_MAX} are allowed"
            )
        size = sum(len(one.text) + one.size for _, one in resolved)
        if size > SOURCE_SIZE_MAX:
            raise InvalidSchema(
                f"the direct and indirect references have {size} characters: at most {SOURCE_SIZE_MAX} are allowed"
            )
        references = tuple(Reference(pointer.name, one.text, one.below) for pointer, one in resolved)
        return _Resolved("", references, count, size)

    async def _resolve_pointer(self, context: str, pointer: Pointer, path: tuple[SubjectVersion, ...]) -> "_Resolved":
        subject = parse(pointer.subject, context)
        use = SubjectVersion(str(subject), pointer.version)
        if use in path:
            raise InvalidSchema(f"reference {pointer.name!r} is cyclic: {_describe((*path, use))}")
        if len(path) >= DEPTH_MAX:
            raise InvalidSchema(f"references are nested deeper than {DEPTH_MAX} levels: {_describe(path[:3])} → …")
        if use not in self._resolved:
            state = self._reader.state
            try:
                schema_id = state.version(subject, pointer.version, deleted=True).id
                schema = state.schema(subject.context, schema_id)
                text = await self._reader.text(subject.context, schema_id)
            except Missing as error:
                raise InvalidSchema(
                    f"reference {pointer.name!r}: version {pointer.version} of {subject} does not exist ({error})"
                ) from error
            below = await self.all(subject.context, schema.references, (*path, use))
            self._resolved[use] = below._replace(text=text.text)
        return self._resolved[use]


class _Resolved(NamedTuple):
    text: str
    below: tuple[Reference, ...]
    total: int
    size: int
    """Number and characters of the references below, each counted as often as it is referenced."""


def _describe(path: tuple[SubjectVersion, ...]) -> str:
    return " → ".join(f"{use.subject} version {use.version}" for use in path)
