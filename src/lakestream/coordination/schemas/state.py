"""The registry at one place of its log: the fold of all changes before it. Every broker that has read as far has the
same one. Only `apply` changes it; everything else asks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lakestream.coordination.schemas.names import DEFAULT, Subject, parse
from lakestream.coordination.schemas.refusals import NoSuchSchema, NoSuchSubject, NoSuchVersion
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


class Use(NamedTuple):
    """Where a schema is to be found."""

    subject: str
    version: int


class SchemaId(NamedTuple):
    context: str
    id: int


@dataclass(slots=True)
class Context:
    schemas: dict[int, NewSchema] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    """By digest."""
    guids: dict[str, int] = field(default_factory=dict)
    uses: dict[int, dict[Use, None]] = field(default_factory=dict)
    last_id: int = 0
    """Also of those that are gone: an id is not given twice."""
    shown: bool = True
    """False: it was removed when it was empty. Its ids stay given."""


class State:
    def __init__(self) -> None:
        self.end = 0
        self.contexts: dict[str, Context] = {DEFAULT: Context()}
        self.subjects: dict[str, dict[int, Version]] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        self.modes: dict[str, str] = {}
        self._needed_by: dict[Use, dict[SchemaId, None]] = {}

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────

    def versions(self, subject: Subject, *, deleted: bool = False) -> list[Version]:
        """In order; with those that were deleted, if asked for."""
        all_of_it = self.subjects.get(str(subject), {})
        return [version for _, version in sorted(all_of_it.items()) if deleted or not version.deleted]

    def found(self, subject: Subject, *, deleted: bool = False) -> list[Version]:
        """NoSuchSubject: it has none."""
        versions = self.versions(subject, deleted=deleted)
        if not versions:
            raise NoSuchSubject(f"Subject '{subject}' not found.")
        return versions

    def version(self, subject: Subject, number: int, *, deleted: bool = False) -> Version:
        versions = self.found(subject, deleted=deleted)
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

    def uses(self, schema: SchemaId, *, deleted: bool = False) -> list[Use]:
        uses = self.context(schema.context).uses.get(schema.id, {})
        return sorted(use for use in uses if deleted or not self.subjects[use.subject][use.version].deleted)

    def needed_by(self, use: Use, *, deleted: bool = False) -> list[SchemaId]:
        """Schemas that refer to this version, and are in use themselves."""
        return sorted(one for one in self._needed_by.get(use, {}) if self.uses(one, deleted=deleted))

    def inside(self, subject: Subject) -> Iterator[str]:
        """The subject; of a context, all that are in it."""
        if not subject.is_context:
            yield from [str(subject)] if str(subject) in self.subjects else []
            return
        yield from (name for name in sorted(self.subjects) if parse(name).context == subject.context)

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────

    def apply(self, change: Change) -> list[NewSchema]:
        """Returns the schemas that are gone for good by it."""
        gone: list[NewSchema] = []
        match change:
            case Registered():
                self._register(change, gone)
            case Deleted(name, numbers):
                versions = self.subjects[name]
                for number in numbers:
                    versions[number] = versions[number]._replace(deleted=True)
            case Removed():
                self._remove(change, gone)
            case Configured(name, config):
                _set(self.configs, name, config)
            case ModeSet(names, mode, removed):
                for one in removed:
                    self._remove(one, gone)
                for name in names:
                    _set(self.modes, name, mode)
            case ContextRemoved(name):
                self.contexts[name].shown = False
        self.end += 1
        return gone

    def _register(self, change: Registered, gone: list[NewSchema]) -> None:
        name = parse(change.subject).context
        context = self.contexts.setdefault(name, Context())
        context.shown = True
        if change.schema is not None:
            context.schemas[change.id] = change.schema
            context.ids[change.schema.digest] = change.id
            context.guids.setdefault(change.schema.guid, change.id)
            context.last_id = max(context.last_id, change.id)
            for pointer in change.schema.references:
                self._needed_by.setdefault(_use(pointer, name), {})[SchemaId(name, change.id)] = None
        use = Use(change.subject, change.version)
        context.uses.setdefault(change.id, {})[use] = None
        self.subjects.setdefault(change.subject, {})[change.version] = Version(change.version, change.id, False)
        self._forget(change.subject, change.replaces, gone)

    def _remove(self, change: Removed, gone: list[NewSchema]) -> None:
        self._forget(change.subject, change.versions, gone)
        if change.settings_too:
            self.configs.pop(change.subject, None)
            self.modes.pop(change.subject, None)

    def _forget(self, name: str, numbers: tuple[int, ...], gone: list[NewSchema]) -> None:
        versions = self.subjects.get(name, {})
        context = parse(name).context
        for number in numbers:
            schema_id = versions.pop(number).id
            uses = self.contexts[context].uses[schema_id]
            del uses[Use(name, number)]
            if not uses:
                gone.append(self._forget_schema(SchemaId(context, schema_id)))
        if not versions:
            self.subjects.pop(name, None)

    def _forget_schema(self, one: SchemaId) -> NewSchema:
        context = self.contexts[one.context]
        schema = context.schemas.pop(one.id)
        del context.uses[one.id]
        context.ids.pop(schema.digest, None)
        if context.guids.get(schema.guid) == one.id:
            del context.guids[schema.guid]
        for pointer in schema.references:
            self._needed_by.get(_use(pointer, one.context), {}).pop(one, None)
        return schema


def _use(pointer: Pointer, context: str) -> Use:
    return Use(str(parse(pointer.subject, context)), pointer.version)


def _set(settings: dict[str, Any], name: str, value: Any) -> None:
    if value is None:
        settings.pop(name, None)
    else:
        settings[name] = value


def _listed(versions: list[Version]) -> str:
    numbers = [str(version.number) for version in versions]
    return ", ".join(numbers) if len(numbers) <= 10 else f"{', '.join(numbers[:3])}, …, {numbers[-1]}"
