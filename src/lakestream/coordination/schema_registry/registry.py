"""The schema registry of one broker. All brokers have one over the same store, and none is a leader.

The broker decides about a change from its cached state (register.py, delete.py, effective_config.py: pure), and appends
it to the log directly after that state. If another broker has appended a change there, this broker reads it and decides
again. So each decision is valid for the state that its change is appended to. A request is rejected only after a
confirmed read of the store.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from lakestream.clock import Ids
from lakestream.coordination.schema_registry import fingerprint
from lakestream.coordination.schema_registry.effective_config import CompatibilityLevel, config_in_scope, level_in_scope
from lakestream.coordination.schema_registry.errors import Incompatible, InvalidSchema, NoSuchSchema, TooLarge
from lakestream.coordination.schema_registry.parser_client import SchemaParserClient
from lakestream.coordination.schema_registry.parser_main import OlderSource
from lakestream.coordination.schema_registry.register import (
    ExistingVersion,
    Limits,
    PreparedSchema,
    check_limit_of_settings,
    existing_version,
    ids_to_compare,
    register,
    version_with_digest,
)
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.coordination.schema_registry.state import LATEST, State, Version
from lakestream.coordination.schema_registry.subjects import Subject, check, parse
from lakestream.errors import Missing, Rejected, Unavailable
from lakestream.metadata.schemas import Change, NewSchema, Pointer, Registered, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Source

TEXT_MAX: Final = 1_000_000
"""In characters."""
EXTRAS_MAX: Final = 1_000_000
"""Bytes of references, metadata and rules of one schema, as JSON."""
TRIES_MAX: Final = 1_000
"""Each failed attempt means that another broker appended a change."""

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """A schema sent by a client."""

    subject: Subject
    format: Format
    text: str
    references: tuple[Pointer, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    id: int | None = None
    version: int | None = None
    normalize: bool = False


class RegisteredVersion(NamedTuple):
    """A version of a subject with its schema and text."""

    subject: str
    version: Version
    schema: NewSchema
    text: StoredText


class _Stored(NamedTuple):
    text_id: str
    """Empty: no text is stored."""
    text: StoredText | None


class SchemaRegistry:
    def __init__(
        self,
        store: MetadataStore,
        ids: Ids,
        parser: SchemaParserClient | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        self.reader = SchemaReader(store)
        self.parser = parser or SchemaParserClient()
        self._ids = ids
        self._limits = limits

    @property
    def state(self) -> State:
        return self.reader.state

    async def close(self) -> None:
        await self.parser.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def read(self, at: Callable[[State], T]) -> T:
        """Evaluates a function of the state, which includes everything acknowledged before this call."""
        await self.reader.catch_up()
        return await self.read_cached(at)

    async def read_cached(self, at: Callable[[State], T]) -> T:
        """Evaluates a function of the cached state, and once more after a confirmed read if that fails."""
        end = self.state.end
        try:
            return at(self.state)
        except (Missing, Rejected):
            if not await self._has_grown(end):
                raise
            return at(self.state)

    async def registration(self, subject: Subject, number: int, *, deleted: bool = False) -> RegisteredVersion:
        version = await self.read(lambda state: state.version(subject, number, deleted=deleted))
        return await self.with_text(subject, version)

    async def with_text(self, subject: Subject, version: Version) -> RegisteredVersion:
        """Returns a version with its schema and text."""
        schema = self.state.schema(subject.context, version.id)
        return RegisteredVersion(str(subject), version, schema, await self.reader.text(subject.context, version.id))

    async def lookup(self, request: RegisterRequest, *, deleted: bool = False) -> RegisteredVersion:
        """Returns the version of a subject with this schema."""
        await self.reader.catch_up()

        async def attempt() -> RegisteredVersion:
            self.state.existing_versions(request.subject, deleted=deleted)
            prepared = await self._prepare(request)
            for one in (prepared, await self._with_inherited(prepared)):
                version = version_with_digest(self.state, request.subject, one.digest, deleted=deleted)
                if version is not None:
                    return await self.with_text(request.subject, version)
            if (version := await self._resolved_version(prepared, deleted=deleted)) is not None:
                return await self.with_text(request.subject, version)
            raise NoSuchSchema(f"Schema not found: no version of subject '{request.subject}' has it")

        return await self._confirmed(attempt)

    async def incompatibilities(self, request: RegisterRequest, number: int | None) -> list[str]:
        """Returns the incompatibilities of a schema with a version, or (None) with those required by the compatibility
        level of the subject."""
        await self.reader.catch_up()

        async def attempt() -> list[str]:
            state, subject = self.state, request.subject
            prepared = await self._prepare(request)
            level = level_in_scope(state, subject)
            if number is None:
                against = ids_to_compare(state, subject, level)
            else:
                against = (state.version(subject, number).id,) if number != LATEST or state.versions(subject) else ()
            return await self._incompatibilities(prepared, level, against)

        return await self._confirmed(attempt)

    async def with_metadata(self, subject: Subject, properties: Json, *, deleted: bool = False) -> RegisteredVersion:
        """Returns the newest version whose metadata has all these properties."""
        for version in reversed(await self.read(lambda state: state.existing_versions(subject, deleted=deleted))):
            registered = await self.with_text(subject, version)
            if all(_property(registered.text.metadata, name) == value for name, value in properties.items()):
                return registered
        raise NoSuchSchema(f"Schema not found: no version of subject '{subject}' has these properties")

    async def formatted(self, found: RegisteredVersion, word: str) -> str | None:
        """Returns the text in another format, or None for the stored text."""
        if not word.strip():
            return None
        return await self.parser.formatted(
            await self.reader.source_of(parse(found.subject).context, found.version.id), word
        )

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, request: RegisterRequest) -> RegisteredVersion:
        check(request.subject)
        await self.reader.catch_up()
        stored = _Stored("", None)
        for _ in range(TRIES_MAX):
            try:
                step = await self._confirmed(lambda: self._plan(request))
            except Rejected:
                await self._drop(stored)
                raise
            if isinstance(step, ExistingVersion):
                await self._drop(stored)
                return await self.with_text(request.subject, step.version)
            position, prepared, change = step
            if change.schema is not None:
                stored = await self._store(prepared, stored)
                change = replace(change, schema=replace(change.schema, text_id=stored.text_id))
            if await self._append(position, change):
                if change.schema is None:
                    await self._drop(stored)
                return await self.with_text(request.subject, Version(change.version, change.id, False))
        raise _too_many_conflicts()

    async def _store(self, prepared: PreparedSchema, stored: "_Stored") -> "_Stored":
        """Stores the text of a schema under a new id, so that a delayed write cannot overwrite another text."""
        text = StoredText(prepared.text, prepared.metadata, prepared.rule_set)
        if text == stored.text:
            return stored
        text_id = self._ids.new()
        await self.reader.log.put_text(text_id, text)
        await self._drop(stored)
        return _Stored(text_id, text)

    async def _plan(self, request: RegisterRequest) -> ExistingVersion | tuple[int, PreparedSchema, Registered]:
        """Returns the existing version, or the change to append and its position in the log."""
        position = self.state.end
        prepared = await self._prepare(request)
        if (version := existing_version(self.state, prepared)) is not None:
            return ExistingVersion(version)
        if request.version is None and (version := await self._resolved_version(prepared)) is not None:
            return ExistingVersion(version)
        if request.id is None:
            prepared = await self._with_inherited(prepared)
        step = register(self.state, prepared, self._limits)
        if isinstance(step, ExistingVersion):
            return step
        if found := await self._incompatibilities(prepared, step.level, step.against):
            raise Incompatible(
                f"Schema being registered is incompatible with an earlier schema for subject '{request.subject}', "
                f"details: [{'; '.join(found)}], {{compatibility: '{step.level.value}'}}"
            )
        return position, prepared, step.change

    async def change(self, decide: Callable[[State], Change | None]) -> Change | None:
        """Appends the change that `decide` returns for the newest state. Returns None if there is nothing to change."""
        await self.reader.catch_up()

        def permitted(state: State) -> Change | None:
            change = decide(state)
            if change is not None:
                check_limit_of_settings(state, change, self._limits)
            return change

        for _ in range(TRIES_MAX):
            change = await self.read_cached(permitted)
            if change is None or await self._append(self.state.end, change):
                return change
        raise _too_many_conflicts()

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _append(self, position: int, change: Change) -> bool:
        if not await self.reader.log.append(position, change, self._ids.new()):
            await self.reader.catch_up()
            return False
        if self.state.end == position:  # otherwise a concurrent read has already applied it
            for schema in self.state.apply(change):
                await self._drop(_Stored(schema.text_id, None))
        return True

    async def _drop(self, stored: "_Stored") -> None:
        """Deletes a text that no change refers to. A text that cannot be deleted now does no harm."""
        if stored.text_id:
            with suppress(Unavailable):
                await self.reader.log.remove_text(stored.text_id)

    async def _confirmed(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Runs `attempt`, and once more after a confirmed read if it fails and the state was outdated."""
        end = self.state.end
        try:
            return await attempt()
        except (Missing, Rejected):
            if not await self._has_grown(end):
                raise
            return await attempt()

    async def _has_grown(self, end: int) -> bool:
        """Returns whether a confirmed read has advanced the state beyond `end`."""
        await self.reader.catch_up(confirmed=True)
        return self.state.end != end

    async def _prepare(self, request: RegisterRequest) -> PreparedSchema:
        if not request.text.strip():
            raise InvalidSchema(f"Empty schema for subject '{request.subject}'")
        _check_size(request.text)
        extras = len(msgspec.json.encode((request.references, request.metadata, request.rule_set)))
        if extras > EXTRAS_MAX:
            raise TooLarge(
                f"references, metadata and rules of the schema have {extras} bytes: at most {EXTRAS_MAX} are allowed"
            )
        references = tuple(self._with_version(request.subject, pointer) for pointer in request.references)
        resolved = await self.reader.resolved(request.subject.context, references)
        source = Source(request.format, request.text, resolved)
        if request.normalize or config_in_scope(self.state, request.subject).get("normalize"):
            text = await self.parser.canonical(source)
        else:
            text = await self.parser.plain(source)
        _check_size(text)
        return _prepared(request, text, references, request.metadata, request.rule_set)

    def _with_version(self, subject: Subject, pointer: Pointer) -> Pointer:
        """Replaces `latest` in a reference by the current number, so that the meaning of a schema never changes."""
        if pointer.version != LATEST:
            return pointer
        try:
            number = self.state.version(parse(pointer.subject, subject.context), LATEST).number
        except Missing as error:
            raise InvalidSchema(f"reference {pointer.name!r}: {error}") from error
        return Pointer(pointer.name, pointer.subject, number)

    async def _with_inherited(self, prepared: PreparedSchema) -> PreparedSchema:
        """Adds the metadata and rules of the previous version where the request has none."""
        versions = self.state.versions(prepared.subject)
        if not versions or (prepared.metadata is not None and prepared.rule_set is not None):
            return prepared
        before = await self.reader.text(prepared.subject.context, versions[-1].id)
        metadata = before.metadata if prepared.metadata is None else prepared.metadata
        rules = before.rule_set if prepared.rule_set is None else prepared.rule_set
        return _prepared(prepared, prepared.text, prepared.references, metadata, rules)

    async def _resolved_version(self, prepared: PreparedSchema, *, deleted: bool = False) -> Version | None:
        """Returns the version with references that has the same resolved text as this schema without references. Java
        serializers send the schema of a class, which is a single text."""
        if prepared.format is not Format.AVRO or prepared.references or prepared.id is not None:
            return None
        for version in reversed(self.state.versions(prepared.subject, deleted=deleted)):
            kept = self.state.schema(prepared.subject.context, version.id)
            if kept.references and kept.format == prepared.format.value:
                source = await self.reader.source_of(prepared.subject.context, version.id)
                if await self.parser.is_resolved(Source(prepared.format, prepared.text), source):
                    return version
        return None

    async def _incompatibilities(
        self, prepared: PreparedSchema, level: CompatibilityLevel, against: tuple[int, ...]
    ) -> list[str]:
        context = prepared.subject.context
        resolved = await self.reader.resolved(context, prepared.references)
        group = config_in_scope(self.state, prepared.subject).get("compatibilityGroup")
        own = _property(prepared.metadata, group)
        numbers = {version.id: version.number for version in self.state.versions(prepared.subject)}
        older = []
        for schema_id in against:
            text = await self.reader.text(context, schema_id)
            if group is None or _property(text.metadata, group) == own:
                older.append(OlderSource(numbers.get(schema_id, 0), await self.reader.source_of(context, schema_id)))
        return await self.parser.incompatibilities(level, Source(prepared.format, prepared.text, resolved), older)


def _check_size(text: str) -> None:
    if len(text) > TEXT_MAX:
        raise TooLarge(f"the schema has {len(text)} characters: at most {TEXT_MAX} are allowed")


def _prepared(
    schema: RegisterRequest | PreparedSchema,
    text: str,
    references: tuple[Pointer, ...],
    metadata: Json | None,
    rules: Json | None,
) -> PreparedSchema:
    identity_json = fingerprint.identity(schema.format, text, references, metadata, rules)
    return PreparedSchema(
        subject=schema.subject,
        format=schema.format,
        text=text,
        references=references,
        metadata=metadata,
        rule_set=rules,
        digest=fingerprint.digest_of(identity_json),
        size=len(identity_json),
        guid=fingerprint.guid(text, references, metadata, rules),
        id=schema.id,
        version=schema.version,
    )


def _property(metadata: Json | None, name: str | None) -> object:
    return ((metadata or {}).get("properties") or {}).get(name)


def _too_many_conflicts() -> Unavailable:
    return Unavailable(f"the schema registry was changed concurrently in {TRIES_MAX} attempts: retry later")
