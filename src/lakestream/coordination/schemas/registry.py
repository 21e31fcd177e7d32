"""The schema registry of one broker. Any number of brokers have one over the same store, and none is special.

A change is decided over the state as this broker knows it (registering.py, deleting.py, scopes.py: pure) and appended
in the place behind it; if somebody else's change is there already, it is read, and the decision is made again. So every
decision holds for the state that it was made over, whoever races. That something is refused is said only after a look
at a store that leads for certain.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from lakestream.clock import Ids
from lakestream.coordination.schemas import identity
from lakestream.coordination.schemas.names import Subject, check, parse
from lakestream.coordination.schemas.reading import OlderSource, Reading
from lakestream.coordination.schemas.refusals import Incompatible, InvalidSchema, NoSuchSchema, TooLarge
from lakestream.coordination.schemas.registering import Draft, Known, compared, known_as, register, there
from lakestream.coordination.schemas.scopes import Level, config_in_scope, level_in_scope
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.coordination.schemas.state import LATEST, State, Version
from lakestream.errors import Missing, Rejected, Unavailable
from lakestream.metadata.schemas import Change, NewSchema, Pointer, Registered, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Source

TEXT_MAX: Final = 1_000_000
TRIES_MAX: Final = 1_000
"""Each lost try is a change that another one made."""

T = TypeVar("T")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A schema as a client sends it."""

    subject: Subject
    format: Format
    text: str
    references: tuple[Pointer, ...] = ()
    metadata: Json | None = None
    rule_set: Json | None = None
    id: int | None = None
    version: int | None = None
    normalize: bool = False


class Registration(NamedTuple):
    """A version of a subject, and all that is known of it."""

    subject: str
    version: Version
    schema: NewSchema
    text: StoredText


class _Stored(NamedTuple):
    text_id: str
    """Empty: nothing is."""
    text: StoredText | None


class SchemaRegistry:
    def __init__(self, store: MetadataStore, ids: Ids, reading: Reading | None = None) -> None:
        self.shelf = SchemaShelf(store)
        self.reading = reading or Reading()
        self._ids = ids

    @property
    def state(self) -> State:
        return self.shelf.state

    def close(self) -> None:
        self.reading.close()

    # ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def look(self, at: Callable[[State], T]) -> T:
        """Over a state with everything that was acknowledged before this call."""
        await self.shelf.catch_up()
        return await self.glance(at)

    async def glance(self, at: Callable[[State], T]) -> T:
        """Of what never changes: from memory; if it is not there, after a look."""
        end = self.state.end
        try:
            return at(self.state)
        except (Missing, Rejected):
            if not await self._has_grown(end):
                raise
            return at(self.state)

    async def registration(self, subject: Subject, number: int, *, deleted: bool = False) -> Registration:
        version = await self.look(lambda state: state.version(subject, number, deleted=deleted))
        return await self.whole(subject, version)

    async def whole(self, subject: Subject, version: Version) -> Registration:
        """A version that was found, with its text."""
        schema = self.state.schema(subject.context, version.id)
        return Registration(str(subject), version, schema, await self.shelf.text(subject.context, version.id))

    async def lookup(self, wanted: Wanted, *, deleted: bool = False) -> Registration:
        """The version of a subject that is this schema."""
        await self.shelf.catch_up()

        async def attempt() -> Registration:
            self.state.found(wanted.subject, deleted=deleted)
            draft = await self._draft(wanted)
            for one in (draft, await self._inheriting(draft)):
                version = known_as(self.state, wanted.subject, one.digest, deleted=deleted)
                if version is not None:
                    return await self.whole(wanted.subject, version)
            if (version := await self._written_out(draft, deleted=deleted)) is not None:
                return await self.whole(wanted.subject, version)
            raise NoSuchSchema(f"Schema not found: no version of subject '{wanted.subject}' is this one")

        return await self._sure(attempt)

    async def troubles(self, wanted: Wanted, number: int | None) -> list[str]:
        """Why it is not compatible with a version, or (None) with those that the subject's level asks for."""
        await self.shelf.catch_up()

        async def attempt() -> list[str]:
            state, subject = self.state, wanted.subject
            draft = await self._draft(wanted)
            wished = level_in_scope(state, subject)
            if number is None:
                against = compared(state, subject, wished)
            else:
                against = (state.version(subject, number).id,) if number != LATEST or state.versions(subject) else ()
            return await self._troubles(draft, wished, against)

        return await self._sure(attempt)

    async def with_metadata(self, subject: Subject, wanted: Json, *, deleted: bool = False) -> Registration:
        """The newest version whose metadata has all these properties."""
        for version in reversed(await self.look(lambda state: state.found(subject, deleted=deleted))):
            found = await self.whole(subject, version)
            if all(_property(found.text.metadata, name) == value for name, value in wanted.items()):
                return found
        raise NoSuchSchema(f"Schema not found: no version of subject '{subject}' has these properties")

    async def formatted(self, found: Registration, word: str) -> str | None:
        """In another spelling; None: as it is kept."""
        if not word.strip():
            return None
        return await self.reading.formatted(
            await self.shelf.source_of(parse(found.subject).context, found.version.id), word
        )

    # ── changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def register(self, wanted: Wanted) -> Registration:
        check(wanted.subject)
        if len(wanted.text) > TEXT_MAX:
            raise TooLarge(f"the schema has {len(wanted.text)} characters; {TEXT_MAX} are the most")
        await self.shelf.catch_up()
        stored = _Stored("", None)
        for _ in range(TRIES_MAX):
            try:
                step = await self._sure(lambda: self._step(wanted))
            except Rejected:
                await self._drop(stored)
                raise
            if isinstance(step, Known):
                await self._drop(stored)
                return await self.whole(wanted.subject, step.version)
            place, draft, change = step
            if change.schema is not None:
                stored = await self._store(draft, stored)
                change = replace(change, schema=replace(change.schema, text_id=stored.text_id))
            if await self._append(place, change):
                if change.schema is None:
                    await self._drop(stored)
                return await self.whole(wanted.subject, Version(change.version, change.id, False))
        raise _crowded()

    async def _store(self, draft: Draft, stored: "_Stored") -> "_Stored":
        """The text of a draft, under a name that no other text ever has: a write that comes late overwrites nothing."""
        text = StoredText(draft.text, draft.metadata, draft.rule_set)
        if text == stored.text:
            return stored
        text_id = self._ids.new()
        await self.shelf.log.put_text(text_id, text)
        await self._drop(stored)
        return _Stored(text_id, text)

    async def _step(self, wanted: Wanted) -> Known | tuple[int, Draft, Registered]:
        """What to do over the state of now: nothing, or a change in this place."""
        place = self.state.end
        draft = await self._draft(wanted)
        if (known := there(self.state, draft)) is not None:
            return Known(known)
        if wanted.version is None and (known := await self._written_out(draft)) is not None:
            return Known(known)
        if wanted.id is None:
            draft = await self._inheriting(draft)
        step = register(self.state, draft)
        if isinstance(step, Known):
            return step
        if found := await self._troubles(draft, step.level, step.against):
            said = f"Schema being registered is incompatible with an earlier schema for subject '{wanted.subject}'"
            raise Incompatible(f"{said}, details: [{'; '.join(found)}], {{compatibility: '{step.level.value}'}}", found)
        return place, draft, step.change

    async def change(self, decide: Callable[[State], Change | None]) -> Change | None:
        """Make the change that `decide` wants, over the newest state. None: there is nothing to do."""
        await self.shelf.catch_up()
        for _ in range(TRIES_MAX):
            change = await self.glance(decide)
            if change is None or await self._append(self.state.end, change):
                return change
        raise _crowded()

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _append(self, place: int, change: Change) -> bool:
        if not await self.shelf.log.append(place, change, self._ids.new()):
            await self.shelf.catch_up()
            return False
        if self.state.end == place:  # else a look that came between has read it already
            for schema in self.state.apply(change):
                await self._drop(_Stored(schema.text_id, None))
        return True

    async def _drop(self, stored: "_Stored") -> None:
        """A text that no change names. One that cannot be removed now does no harm."""
        if stored.text_id:
            with suppress(Unavailable):
                await self.shelf.log.remove_text(stored.text_id)

    async def _sure(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """A refusal counts only over a state that is new for certain."""
        end = self.state.end
        try:
            return await attempt()
        except (Missing, Rejected):
            if not await self._has_grown(end):
                raise
            return await attempt()

    async def _has_grown(self, end: int) -> bool:
        """Whether there is more now than what was decided over, for certain."""
        await self.shelf.catch_up(confirmed=True)
        return self.state.end != end

    async def _draft(self, wanted: Wanted) -> Draft:
        if not wanted.text.strip():
            raise InvalidSchema(f"Empty schema for subject '{wanted.subject}'")
        references = tuple(self._pinned(wanted.subject, pointer) for pointer in wanted.references)
        resolved = await self.shelf.resolved(wanted.subject.context, references)
        source = Source(wanted.format, wanted.text, resolved)
        if wanted.normalize or config_in_scope(self.state, wanted.subject).get("normalize"):
            text = await self.reading.canonical(source)
        else:
            text = await self.reading.plain(source)
        return _drawn(wanted, text, references, wanted.metadata, wanted.rule_set)

    def _pinned(self, subject: Subject, pointer: Pointer) -> Pointer:
        """`latest` in a reference means that of now: what a schema says does not change later."""
        if pointer.version != LATEST:
            return pointer
        try:
            number = self.state.version(parse(pointer.subject, subject.context), LATEST).number
        except Missing as error:
            raise InvalidSchema(f"reference {pointer.name!r}: {error}") from error
        return Pointer(pointer.name, pointer.subject, number)

    async def _inheriting(self, draft: Draft) -> Draft:
        """Metadata and rules that are not sent are those of the version before."""
        versions = self.state.versions(draft.subject)
        if not versions or (draft.metadata is not None and draft.rule_set is not None):
            return draft
        before = await self.shelf.text(draft.subject.context, versions[-1].id)
        metadata = before.metadata if draft.metadata is None else draft.metadata
        rules = before.rule_set if draft.rule_set is None else draft.rule_set
        return _drawn(draft, draft.text, draft.references, metadata, rules)

    async def _written_out(self, draft: Draft, *, deleted: bool = False) -> Version | None:
        """The version that says with references what this one says without: serializers of Java send the schema that
        their class has, with everything in one text."""
        if draft.format is not Format.AVRO or draft.references or draft.id is not None:
            return None
        for version in reversed(self.state.versions(draft.subject, deleted=deleted)):
            kept = self.state.schema(draft.subject.context, version.id)
            if kept.references and kept.format == draft.format.value:
                source = await self.shelf.source_of(draft.subject.context, version.id)
                if await self.reading.is_resolved(Source(draft.format, draft.text), source):
                    return version
        return None

    async def _troubles(self, draft: Draft, level: Level, against: tuple[int, ...]) -> list[str]:
        context = draft.subject.context
        resolved = await self.shelf.resolved(context, draft.references)
        group = config_in_scope(self.state, draft.subject).get("compatibilityGroup")
        mine = _property(draft.metadata, group)
        numbers = {version.id: version.number for version in self.state.versions(draft.subject)}
        older = []
        for schema_id in against:
            text = await self.shelf.text(context, schema_id)
            if group is None or _property(text.metadata, group) == mine:
                older.append(OlderSource(numbers.get(schema_id, 0), await self.shelf.source_of(context, schema_id)))
        return await self.reading.troubles(level, Source(draft.format, draft.text, resolved), older)


def _drawn(
    drawn: Wanted | Draft, text: str, references: tuple[Pointer, ...], metadata: Json | None, rules: Json | None
) -> Draft:
    return Draft(
        subject=drawn.subject,
        format=drawn.format,
        text=text,
        references=references,
        metadata=metadata,
        rule_set=rules,
        digest=identity.digest(drawn.format, text, references, metadata, rules),
        guid=identity.guid(text, references, metadata, rules),
        id=drawn.id,
        version=drawn.version,
    )


def _property(metadata: Json | None, name: str | None) -> object:
    return ((metadata or {}).get("properties") or {}).get(name)


def _crowded() -> Unavailable:
    return Unavailable("the schema registry is changed by others all the time: try again later")
