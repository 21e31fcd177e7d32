"""Decides about the registration of a schema: an existing version, or the change that adds a new one. Pure."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from lakestream.coordination.schema_registry.effective_config import (
    CompatibilityLevel,
    SubjectMode,
    level_in_scope,
    mode_in_scope,
)
from lakestream.coordination.schema_registry.errors import InvalidSchema, NotPermitted
from lakestream.coordination.schema_registry.state import SchemaId, State, SubjectVersion, Version
from lakestream.coordination.schema_registry.subjects import Subject
from lakestream.metadata.schemas import Change, Configured, ModeSet, NewSchema, Pointer, Registered
from lakestream.model import MiB
from lakestream.schemas.model import Format

ID_MAX = 2**31 - 1


class Limits(NamedTuple):
    """Limits of a registry. They are checked against the state that a change is appended to, so concurrent brokers
    cannot exceed them together."""

    versions: int = 50_000
    bytes: int = 128 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSchema:
    """A valid schema and the subject to register it under."""

    subject: Subject
    format: Format
    text: str
    references: tuple[Pointer, ...] = ()
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = None
    digest: str
    guid: str
    size: int
    """In bytes, with references, metadata and rules."""
    id: int | None = None
    """Given only by imports; so is `version`."""
    version: int | None = None


class ExistingVersion(NamedTuple):
    """The schema is already registered."""

    version: Version


class NewVersion(NamedTuple):
    change: Registered
    level: CompatibilityLevel
    against: tuple[int, ...]
    """Ids of the schemas that it must be compatible with, newest first."""


def version_with_digest(state: State, subject: Subject, digest: str, *, deleted: bool = False) -> Version | None:
    """Returns the newest version of a subject with this schema."""
    schema_id = state.context(subject.context).ids.get(digest)
    found = [version for version in state.versions(subject, deleted=deleted) if version.id == schema_id]
    return found[-1] if found else None


def register(state: State, prepared: PreparedSchema, limits: Limits) -> ExistingVersion | NewVersion:
    """Returns the existing version, or the change that registers a new one. For a new schema, the caller must still
    set the id of its stored text."""
    if (existing := existing_version(state, prepared)) is not None:
        return ExistingVersion(existing)
    mode = mode_in_scope(state, prepared.subject)
    _permit(prepared, mode)
    schema_id, is_new = _id(state, prepared)
    _check_limits(state, prepared.size if is_new else 0, limits)
    version = _version(state, prepared, schema_id, mode)
    replaces = tuple(
        one.number
        for one in state.versions(prepared.subject, deleted=True)
        if one.deleted
        and one.id == schema_id
        and one.number < version
        and not state.referrers(SubjectVersion(str(prepared.subject), one.number), deleted=True)
    )
    schema = (
        NewSchema(prepared.format.value, "", prepared.digest, prepared.guid, prepared.references, prepared.size)
        if is_new
        else None
    )
    change = Registered(str(prepared.subject), version, schema_id, schema, replaces)
    level = level_in_scope(state, prepared.subject) if mode is not SubjectMode.IMPORT else CompatibilityLevel.NONE
    return NewVersion(change, level, ids_to_compare(state, prepared.subject, level))


def ids_to_compare(state: State, subject: Subject, level: CompatibilityLevel) -> tuple[int, ...]:
    """Returns the ids of the schemas to compare a new one with: none, the latest, or all; newest first."""
    if level is CompatibilityLevel.NONE:
        return ()
    ids = tuple(dict.fromkeys(version.id for version in reversed(state.versions(subject))))
    return ids if level.value.endswith("_TRANSITIVE") else ids[:1]


def existing_version(state: State, prepared: PreparedSchema) -> Version | None:
    """Returns the version with this schema, id and version number, if it exists."""
    existing = version_with_digest(state, prepared.subject, prepared.digest)
    if existing is None or prepared.id not in (None, existing.id):
        return None
    if prepared.version is None or prepared.version == existing.number:
        return existing
    numbered = state.subjects[str(prepared.subject)].get(prepared.version)
    return numbered if numbered is not None and not numbered.deleted and numbered.id == existing.id else None


def check_limit_of_settings(state: State, change: Change, limits: Limits) -> None:
    """NotPermitted if the registry has as many configs and modes of subjects as it may have versions."""
    match change:
        case Configured(name, config):
            names = [name] if config is not None and name not in state.configs else []
        case ModeSet(subjects, mode):
            names = [name for name in subjects if mode is not None and name not in state.modes]
        case _:
            return
    if names and len(state.configs) + len(state.modes) >= limits.versions:
        raise NotPermitted(
            f"Subject '{names[0]}': the registry has {limits.versions} settings of subjects, the limit of "
            "schema-versions-max: delete settings of other subjects, or raise the limit on all brokers"
        )


def _check_limits(state: State, size: int, limits: Limits) -> None:
    """NotPermitted if the registry is full."""
    if state.versions_count >= limits.versions:
        raise NotPermitted(
            f"the registry has {state.versions_count} versions of schemas, and schema-versions-max is "
            f"{limits.versions}: delete versions permanently, or raise the limit on all brokers"
        )
    if state.size + size > limits.bytes:
        raise NotPermitted(
            f"the registry has {state.size} bytes of schemas, this one has {size}, and schema-bytes-max is "
            f"{limits.bytes}: delete versions permanently, or raise the limit on all brokers"
        )


def _permit(prepared: PreparedSchema, mode: SubjectMode) -> None:
    where = f"Subject {prepared.subject} in context {prepared.subject.context}"
    if mode.is_read_only:
        raise NotPermitted(f"{where} is in read-only mode")
    if prepared.id is not None and mode is not SubjectMode.IMPORT:
        raise NotPermitted(f"{where} is not in import mode: omit the id")
    if prepared.id is None and mode is not SubjectMode.READWRITE:
        raise NotPermitted(f"{where} is not in read-write mode: give the id of the schema in import mode")


def _id(state: State, prepared: PreparedSchema) -> tuple[int, bool]:
    """Returns the id of the schema, and whether it is new. A schema has the same id in all subjects of a context."""
    context = state.context(prepared.subject.context)
    schema_id = context.ids.get(prepared.digest)
    if prepared.id is None:
        if schema_id is not None:
            return schema_id, False
        if context.last_id >= ID_MAX:
            raise NotPermitted(
                f"context {prepared.subject.context} has no unused schema ids: all {ID_MAX} are assigned"
            )
        return context.last_id + 1, True
    existing = context.schemas.get(prepared.id)
    if existing is not None and existing.digest != prepared.digest:
        raise NotPermitted(
            f"Overwrite new schema with id {prepared.id} in context {prepared.subject.context} is not permitted: "
            f"it is another schema, {_location_text(state, SchemaId(prepared.subject.context, prepared.id))}"
        )
    return prepared.id, existing is None


def _version(state: State, prepared: PreparedSchema, schema_id: int, mode: SubjectMode) -> int:
    versions = state.subjects.get(str(prepared.subject), {})
    following = max(versions, default=0) + 1
    if prepared.version is None or prepared.version == following:
        return following
    if mode is not SubjectMode.IMPORT:
        raise InvalidSchema(f"Version is not one more than previous version: give {following}, or none")
    existing = versions.get(prepared.version)
    if existing is not None and existing.id != schema_id:
        raise NotPermitted(
            f"Version {prepared.version} of subject {prepared.subject} is already schema {existing.id}, not {schema_id}"
        )
    return prepared.version


def _location_text(state: State, schema: SchemaId) -> str:
    uses = state.uses(schema, deleted=True)
    return f"version {uses[0].version} of {uses[0].subject}" if uses else "of another subject"
