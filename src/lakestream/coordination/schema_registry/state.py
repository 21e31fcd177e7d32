"""State of the registry at a position of its log: the result of all changes before it.

All brokers that have read the same part of the log have the same state. Only `apply` changes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakestream.coordination.schema_registry.errors import NoSuchSchema, NoSuchSubject, NoSuchVersion
from lakestream.coordination.schema_registry.subjects import DEFAULT, Subject, parse
from lakestream.metadata.schemas import (
    Change,
    Configured,
    ContextRemoved,
    Deleted,
    ModeSet,
    NewSchema,
    Pointer,
    Registered,
    Removed,
)

LATEST = -1


class Version(NamedTuple):
    number: int
    id: int
    deleted: bool


class SubjectVersion(NamedTuple):
    """A version of a subject."""

    subject: str
    version: int


class SchemaId(NamedTuple):
    context: str
    id: int


@dataclass(slots=True)
class Context:
    schemas: dict[int, NewSchema] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """Schema ids by digest."""
    guids: dict[str, int] = field(default_factory=dict)
    uses: dict[int, dict[SubjectVersion, None]] = field(default_factory=dict)
    last_id: int = 0
    """The highest id ever assigned, including deleted schemas: an id is never assigned twice."""
    shown: bool = True
    """False if the context was deleted when it was empty. Its ids stay assigned."""


class State:
    def __init__(self) -> None:
        self.end = 0
        self.contexts: dict[str, Context] = {DEFAULT: Context()}
        self.subjects: dict[str, dict[int, Version]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self.versions_count = 0
        """Of all subjects, including soft-deleted versions."""
        self.size = 0
        """Bytes of all schemas."""
        self._referrers: dict[SubjectVersion, dict[SchemaId, None]] = {}

    # ── queries ────────────────────────────────────────────────────────────────────────────────────────────────

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[Version]:
        """Returns the versions of a subject in order. `deleted` includes soft-deleted versions."""
        all_versions = self.subjects.get(str(subject), {})
        return [version for _, version in sorted(all_versions.items()) if deleted or not version.deleted]

    def existing_versions(self, subject: Subject, *, deleted: bool = False) -> list[Version]:
        """Returns the versions of a subject. NoSuchSubject if it has none."""
        versions = self.versions(subject, deleted=deleted)
        if not versions:
            raise NoSuchSubject(f"Subject '{subject}' not found.")
        return versions

    def version(self, subject: Subject, number: int, *, deleted: bool = False) -> Version:
        versions = self.existing_versions(subject, deleted=deleted)
        if number == LATEST:
            return next((one for one in reversed(versions) if not one.deleted), versions[-1])
        for version in versions:
            if version.number == number:
                return version
        raise NoSuchVersion(f"Version {number} not found: subject '{subject}' has {_listed(versions)}.")

    def schema(self, context: str, schema_id: int) -> NewSchema:
        found = self.context(context).schemas.get(schema_id)
        if found is None:
            raise NoSuchSchema(f"Schema {schema_id} not found" + ("" if context == DEFAULT else f" in {context}"))
        return found

    def context(self, name: str) -> Context:
        return self.contexts.get(name) or Context()

    def uses(self, schema: SchemaId, *, deleted: bool = False) -> list[SubjectVersion]:
        uses = self.context(schema.context).uses.get(schema.id, {})
        return sorted(use for use in uses if deleted or not self.subjects[use.subject][use.version].deleted)

    def referrers(self, version: SubjectVersion, *, deleted: bool = False) -> list[SchemaId]:
        """Returns the schemas that refer to this version and are themselves in use."""
        return sorted(one for one in self._referrers.get(version, {}) if self.uses(one, deleted=deleted))

    def inside(self, subject: Subject) -> Iterator[str]:
        """Yields the subject itself, or all subjects of a context."""
        if not subject.is_context:
            yield from [str(subject)] if str(subject) in self.subjects else []
            return
        yield from (name for name in sorted(self.subjects) if parse(name).context == subject.context)

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, change: Change) -> list[NewSchema]:
        """Applies a change, and returns the schemas that it deletes permanently."""
        unused: list[NewSchema] = []
        match change:
            case Registered():
                self._register(change, unused)
            case Deleted(name, numbers):
                versions = self.subjects[name]
                for number in numbers:
                    versions[number] = versions[number]._replace(deleted=True)
            case Removed():
                self._remove(change, unused)
            case Configured(name, config):
                _set(self.configs, name, config)
            case ModeSet(names, mode, removed):
                for one in removed:
                    self._remove(one, unused)
                for name in names:
                    _set(self.modes, name, mode)
            case ContextRemoved(name):
                self.contexts[name].shown = False
        self.end += 1
        return unused

    def _register(self, change: Registered, unused: list[NewSchema]) -> None:
        name = parse(change.subject).context
        context = self.contexts.setdefault(name, Context())
        context.shown = True
        if change.schema is not None:
            if (replaced := context.schemas.get(change.id)) is not None:
                self.size -= replaced.size
            self.size += change.schema.size
            context.schemas[change.id] = change.schema
            context.ids[change.schema.digest] = change.id
            context.guids.setdefault(change.schema.guid, change.id)
            context.last_id = max(context.last_id, change.id)
            for pointer in change.schema.references:
                self._referrers.setdefault(_use(pointer, name), {})[SchemaId(name, change.id)] = None
        use = SubjectVersion(change.subject, change.version)
        context.uses.setdefault(change.id, {})[use] = None
        versions = self.subjects.setdefault(change.subject, {})
        self.versions_count += change.version not in versions
        versions[change.version] = Version(change.version, change.id, False)
        self._forget(change.subject, change.replaces, unused)

    def _remove(self, change: Removed, unused: list[NewSchema]) -> None:
        self._forget(change.subject, change.versions, unused)
        if change.settings_too:
            self.configs.pop(change.subject, None)
            self.modes.pop(change.subject, None)

    def _forget(self, name: str, numbers: tuple[int, ...], unused: list[NewSchema]) -> None:
        versions = self.subjects.get(name, {})
        context = parse(name).context
        for number in numbers:
            schema_id = versions.pop(number).id
            self.versions_count -= 1
            uses = self.contexts[context].uses[schema_id]
            del uses[SubjectVersion(name, number)]
            if not uses:
                unused.append(self._forget_schema(SchemaId(context, schema_id)))
        if not versions:
            self.subjects.pop(name, None)

    def _forget_schema(self, one: SchemaId) -> NewSchema:
        context = self.contexts[one.context]
        schema = context.schemas.pop(one.id)
        self.size -= schema.size
        del context.uses[one.id]
        context.ids.pop(schema.digest, None)
        if context.guids.get(schema.guid) == one.id:
            del context.guids[schema.guid]
        for pointer in schema.references:
            self._referrers.get(_use(pointer, one.context), {}).pop(one, None)
        return schema


def _use(pointer: Pointer, context: str) -> SubjectVersion:
    return SubjectVersion(str(parse(pointer.subject, context)), pointer.version)


def _set(settings: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        settings.pop(name, None)
    else:
        settings[name] = value


def _listed(versions: list[Version]) -> str:
    numbers = [str(version.number) for version in versions]
    return ", ".join(numbers) if len(numbers) <= 10 else f"{', '.join(numbers[:3])}, …, {numbers[-1]}"
