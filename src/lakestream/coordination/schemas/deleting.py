"""What may go, in two steps: deleted (still to be had by id), then removed for good. Pure."""

from lakestream.coordination.schemas.names import Subject
from lakestream.coordination.schemas.refusals import (
    ContextNotEmpty,
    NoSuchSubject,
    NotPermitted,
    Referenced,
    SubjectDeleted,
    SubjectNotDeleted,
    VersionDeleted,
    VersionNotDeleted,
)
from lakestream.coordination.schemas.scopes import Mode, mode_in_scope
from lakestream.coordination.schemas.state import LATEST, SchemaId, State, Use
from lakestream.metadata.schemas import ContextRemoved, Deleted, ModeSet, Removed


def delete_version(state: State, subject: Subject, number: int, *, permanent: bool) -> Deleted | Removed:
    versions = state.found(subject, deleted=True)
    if number == LATEST:
        number = state.version(subject, LATEST, deleted=True).number
    version = state.version(subject, number, deleted=True)
    if version.deleted and not permanent:
        raise VersionDeleted(
            f"Subject '{subject}' Version {number} was soft deleted. Set permanent=true to delete permanently"
        )
    _permit(state, subject)
    _check_unneeded(state, subject, number, permanent=permanent)
    if not permanent:
        return Deleted(str(subject), (number,))
    if not version.deleted:
        raise VersionNotDeleted(
            f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        )
    return Removed(str(subject), (number,), settings_too=len(versions) == 1)


def delete_subject(state: State, subject: Subject, *, permanent: bool) -> Deleted | Removed:
    versions = state.found(subject, deleted=True)
    living = [version for version in versions if not version.deleted]
    if not permanent and not living:
        raise SubjectDeleted(f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently")
    _permit(state, subject)
    for version in versions if permanent else living:
        _check_unneeded(state, subject, version.number, permanent=permanent, by_others=True)
    if not permanent:
        return Deleted(str(subject), tuple(version.number for version in living))
    if living:
        raise SubjectNotDeleted(f"Subject '{subject}' was not deleted first before being permanently deleted")
    return Removed(str(subject), tuple(version.number for version in versions), settings_too=True)


def set_mode(state: State, subject: Subject, mode: Mode | None, *, force: bool) -> ModeSet:
    """Schemas can be imported only where there are none: their ids and versions could not be kept else."""
    name = str(subject)
    if mode is not Mode.IMPORT or mode_in_scope(state, subject) is Mode.IMPORT or force:
        return ModeSet((name,), None if mode is None else mode.value)
    inside = list(state.inside(subject))
    for one in inside:
        if any(not version.deleted for version in state.subjects[one].values()):
            raise NotPermitted(f"Cannot import since found existing subjects, for example '{one}' (or use force=true)")
    for one in inside:
        for number in state.subjects[one]:
            outside = [
                need for need in state.needed_by(Use(one, number), deleted=True) if not _within(state, need, inside)
            ]
            if outside:
                raise _referenced(Use(one, number), outside[0])
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


def _check_unneeded(state: State, subject: Subject, number: int, *, permanent: bool, by_others: bool = False) -> None:
    use = Use(str(subject), number)
    for need in state.needed_by(use, deleted=permanent):
        if not (by_others and _within(state, need, [str(subject)])):
            raise _referenced(use, need)


def _within(state: State, schema: SchemaId, subjects: list[str]) -> bool:
    return all(use.subject in subjects for use in state.uses(schema, deleted=True))


def _referenced(use: Use, need: SchemaId) -> Referenced:
    return Referenced(
        f"One or more references exist to the schema: version {use.version} of '{use.subject}' is needed by "
        f"schema {need.id} in context {need.context}"
    )
