"""Decides whether schemas may be deleted: first softly (still readable by id), then permanently. Pure."""

from lakestream.coordination.schema_registry.effective_config import SubjectMode, mode_in_scope
from lakestream.coordination.schema_registry.errors import (
    ContextNotEmpty,
    NoSuchSubject,
    NotPermitted,
    Referenced,
    SubjectDeleted,
    SubjectNotDeleted,
    VersionDeleted,
    VersionNotDeleted,
)
from lakestream.coordination.schema_registry.state import LATEST, SchemaId, State, SubjectVersion
from lakestream.coordination.schema_registry.subjects import Subject
from lakestream.metadata.schemas import ContextRemoved, Deleted, ModeSet, Removed


def delete_version(state: State, subject: Subject, number: int, *, permanent: bool) -> Deleted | Removed:
    versions = state.existing_versions(subject, deleted=True)
    if number == LATEST:
        number = state.version(subject, LATEST, deleted=True).number
    version = state.version(subject, number, deleted=True)
    if version.deleted and not permanent:
        raise VersionDeleted(
            f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
        )
    _permit(state, subject)
    _check_not_referenced(state, subject, number, permanent=permanent)
    if not permanent:
        return Deleted(str(subject), (number,))
    if not version.deleted:
        raise VersionNotDeleted(
            f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        )
    return Removed(str(subject), (number,), settings_too=len(versions) == 1)


def delete_subject(state: State, subject: Subject, *, permanent: bool) -> Deleted | Removed:
    versions = state.existing_versions(subject, deleted=True)
    existing = [version for version in versions if not version.deleted]
    if not permanent and not existing:
        raise SubjectDeleted(f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")
    _permit(state, subject)
    for version in versions if permanent else existing:
        _check_not_referenced(state, subject, version.number, permanent=permanent, ignores_own=True)
    if not permanent:
        return Deleted(str(subject), tuple(version.number for version in existing))
    if existing:
        raise SubjectNotDeleted(f"Subject '{subject}' was not deleted first before being permanently deleted")
    return Removed(str(subject), tuple(version.number for version in versions), settings_too=True)


def set_mode(state: State, subject: Subject, mode: SubjectMode | None, *, force: bool) -> ModeSet:
    """Sets the mode of a subject or context. IMPORT requires that it has no schemas, because an import keeps the
    original ids and versions."""
    name = str(subject)
    if mode is not SubjectMode.IMPORT or mode_in_scope(state, subject) is SubjectMode.IMPORT or force:
        return ModeSet((name,), None if mode is None else mode.value)
    inside = list(state.inside(subject))
    for one in inside:
        if any(not version.deleted for version in state.subjects[one].values()):
            raise NotPermitted(f"Cannot import since found existing subjects, for example '{one}' (or use force=true)")
    for one in inside:
        for number in state.subjects[one]:
            outside = [
                referrer
                for referrer in state.referrers(SubjectVersion(one, number), deleted=True)
                if not _within(state, referrer, inside)
            ]
            if outside:
                raise _referenced(SubjectVersion(one, number), outside[0])
    removed = tuple(Removed(one, tuple(state.subjects[one]), settings_too=False) for one in inside)
    return ModeSet((name,), mode.value, removed)


def remove_context(state: State, context: str) -> ContextRemoved:
    if context not in state.contexts or not state.contexts[context].shown:
        raise NoSuchSubject(f"Context {context} not found.")
    if inside := next(state.inside(Subject(context, "")), None):
        raise ContextNotEmpty(f"Context {context} is not empty: it has the subject '{inside}'")
    return ContextRemoved(context)


def _permit(state: State, subject: Subject) -> None:
    if mode_in_scope(state, subject).is_read_only:
        raise NotPermitted(f"Subject {subject} in context {subject.context} is in read-only mode")


def _check_not_referenced(
    state: State, subject: Subject, number: int, *, permanent: bool, ignores_own: bool = False
) -> None:
    """Raises Referenced if another schema refers to this version. `ignores_own`: schemas used only by this subject do
    not count."""
    version = SubjectVersion(str(subject), number)
    for referrer in state.referrers(version, deleted=permanent):
        if not (ignores_own and _within(state, referrer, [str(subject)])):
            raise _referenced(version, referrer)


def _within(state: State, schema: SchemaId, subjects: list[str]) -> bool:
    return all(use.subject in subjects for use in state.uses(schema, deleted=True))


def _referenced(version: SubjectVersion, referrer: SchemaId) -> Referenced:
    return Referenced(
        f"One or more references exist to the schema: schema {referrer.id} in context {referrer.context} refers to "
        f"version {version.version} of '{version.subject}'"
    )
