"""What becomes of a schema that somebody wants to register. Pure: a state and a draft in, the next change out."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from lakestream.coordination.schemas.names import Subject
from lakestream.coordination.schemas.refusals import InvalidSchema, NotPermitted
from lakestream.coordination.schemas.scopes import Level, Mode, level_in_scope, mode_in_scope
from lakestream.coordination.schemas.state import SchemaId, State, Use, Version
from lakestream.metadata.schemas import NewSchema, Pointer, Registered
from lakestream.schemas.model import Format

ID_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A schema that was read and found to be one, and where it is to be."""

    subject: Subject
    format: Format
    text: str
    references: tuple[Pointer, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    digest: str
    guid: str
    id: int | None = None
    """Given only when schemas are imported."""
    version: int | None = None


class Known(NamedTuple):
    """It is there already."""

    version: Version


class Next(NamedTuple):
    change: Registered
    level: Level
    against: tuple[int, ...]
    """Ids of the schemas that it has to be compatible with, the newest first."""


def known_as(state: State, subject: Subject, digest: str, *, deleted: bool = False) -> Version | None:
    """The version of a subject that is this schema; the newest, if several are."""
    schema_id = state.context(subject.context).ids.get(digest)
    found = [version for version in state.versions(subject, deleted=deleted) if version.id == schema_id]
    return found[-1] if found else None


def register(state: State, draft: Draft) -> Known | Next:
    """Where a schema is new, the change lacks only the name under which its text will be stored."""
    if (known := there(state, draft)) is not None:
        return Known(known)
    mode = mode_in_scope(state, draft.subject)
    _permit(draft, mode)
    schema_id, new = _id(state, draft)
    version = _version(state, draft, schema_id, mode)
    replaces = tuple(
        one.number
        for one in state.versions(draft.subject, deleted=True)
        if one.deleted
        and one.id == schema_id
        and one.number < version
        and not state.needed_by(Use(str(draft.subject), one.number), deleted=True)
    )
    schema = NewSchema(draft.format.value, "", draft.digest, draft.guid, draft.references) if new else None
    change = Registered(str(draft.subject), version, schema_id, schema, replaces)
    level = level_in_scope(state, draft.subject) if mode is not Mode.IMPORT else Level.NONE
    return Next(change, level, compared(state, draft.subject, level))


def compared(state: State, subject: Subject, level: Level) -> tuple[int, ...]:
    """Which schemas a new one is held against: none, the latest, or all; the newest first."""
    if level is Level.NONE:
        return ()
    ids = tuple(dict.fromkeys(version.id for version in reversed(state.versions(subject))))
    return ids if level.value.endswith("_TRANSITIVE") else ids[:1]


def there(state: State, draft: Draft) -> Version | None:
    """The version that it is already."""
    known = known_as(state, draft.subject, draft.digest)
    if known is None or draft.id not in (None, known.id):
        return None
    if draft.version is None or draft.version == known.number:
        return known
    numbered = state.subjects[str(draft.subject)].get(draft.version)
    return numbered if numbered is not None and not numbered.deleted and numbered.id == known.id else None


def _permit(draft: Draft, mode: Mode) -> None:
    where = f"Subject {draft.subject} in context {draft.subject.context}"
    if mode.is_read_only:
        raise NotPermitted(f"{where} is in read-only mode")
    if draft.id is not None and mode is not Mode.IMPORT:
        raise NotPermitted(f"{where} is not in import mode: an id can be given only in that one")
    if draft.id is None and mode is not Mode.READWRITE:
        raise NotPermitted(f"{where} is not in read-write mode: in import mode a schema comes with its id")


def _id(state: State, draft: Draft) -> tuple[int, bool]:
    """Its id, and whether that is new. The same schema has the same id in all subjects of a context."""
    context = state.context(draft.subject.context)
    known = context.ids.get(draft.digest)
    if draft.id is None:
        if known is not None:
            return known, False
        if context.last_id >= ID_MAX:
            raise NotPermitted(f"context {draft.subject.context} has given out all ids up to {ID_MAX}")
        return context.last_id + 1, True
    taken = context.schemas.get(draft.id)
    if taken is not None and taken.digest != draft.digest:
        raise NotPermitted(
            f"Overwrite new schema with id {draft.id} in context {draft.subject.context} is not permitted: "
            f"it is another schema, {_where(state, SchemaId(draft.subject.context, draft.id))}"
        )
    return draft.id, taken is None


def _version(state: State, draft: Draft, schema_id: int, mode: Mode) -> int:
    versions = state.subjects.get(str(draft.subject), {})
    following = max(versions, default=0) + 1
    if draft.version is None or draft.version == following:
        return following
    if mode is not Mode.IMPORT:
        raise InvalidSchema(f"Version is not one more than previous version: give {following}, or none")
    taken = versions.get(draft.version)
    if taken is not None and taken.id != schema_id:
        raise NotPermitted(
            f"Version {draft.version} of subject {draft.subject} is schema {taken.id}: it cannot be {schema_id} too"
        )
    return draft.version


def _where(state: State, schema: SchemaId) -> str:
    uses = state.uses(schema, deleted=True)
    return f"version {uses[0].version} of {uses[0].subject}" if uses else "of another subject"
