"""Effective config and mode of a subject: its own, else those of its context, else the global ones. Pure."""

from enum import Enum
from typing import Any, Final

from lakestream.coordination.schema_registry.errors import InvalidLevel, InvalidMode, NoMode, NotConfigured
from lakestream.coordination.schema_registry.state import State
from lakestream.coordination.schema_registry.subjects import DEFAULT, EVERYTHING, GLOBAL, Subject, parse

Config = dict[str, Any]


class CompatibilityLevel(Enum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class SubjectMode(Enum):
    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Read-only, also for subjects with a mode of their own."""
    IMPORT = "IMPORT"

    @property
    def is_read_only(self) -> bool:
        return self in (SubjectMode.READONLY, SubjectMode.READONLY_OVERRIDE)


LEVEL: Final = "compatibilityLevel"
DEFAULT_CONFIG: Final[Config] = {LEVEL: CompatibilityLevel.BACKWARD.value}
INHERITED: Final = ("normalize", "compatibilityGroup")
"""Settings that a subject with a config of its own inherits from the global config."""
GLOBALLY: Final = Subject(GLOBAL, "")


def level(text: object) -> CompatibilityLevel:
    try:
        return CompatibilityLevel(str(text).upper())
    except ValueError:
        known = ", ".join(one.value for one in CompatibilityLevel)
        raise InvalidLevel(f"Invalid compatibility level {str(text)[:40]!r}. Valid values are {known}") from None


def mode(text: object) -> SubjectMode:
    try:
        return SubjectMode(str(text).upper())
    except ValueError:
        known = ", ".join(one.value for one in SubjectMode)
        raise InvalidMode(f"Invalid mode {str(text)[:40]!r}. Valid values are {known}") from None


def _scopes_above(subject: Subject) -> list[str]:
    """Returns the scopes that apply if the subject has no value of its own, in order."""
    context = EVERYTHING if subject.context == DEFAULT else Subject(subject.context, "")
    return [str(context), str(GLOBALLY)]


def config_in_scope(state: State, subject: Subject) -> Config:
    own = state.configs.get(str(subject))
    if own is None:
        found = next((state.configs[name] for name in _scopes_above(subject) if name in state.configs), {})
        return DEFAULT_CONFIG | found
    everywhere = state.configs.get("", {})
    return DEFAULT_CONFIG | {name: everywhere[name] for name in INHERITED if name in everywhere} | own


def own_config(state: State, subject: Subject) -> Config:
    """Returns the subject's own config. NotConfigured if it has none; the global scope always has one."""
    own = state.configs.get(str(subject))
    if own is None and subject not in (EVERYTHING, GLOBALLY):
        raise NotConfigured(f"Subject '{subject}' does not have subject-level compatibility configured")
    return DEFAULT_CONFIG | (own or {})


def mode_in_scope(state: State, subject: Subject) -> SubjectMode:
    above = [SubjectMode(state.modes[name]) for name in _scopes_above(subject) if name in state.modes]
    if SubjectMode.READONLY_OVERRIDE in above:
        return SubjectMode.READONLY_OVERRIDE
    if (own := state.modes.get(str(subject))) is not None:
        return SubjectMode(own)
    return above[0] if above else SubjectMode.READWRITE


def own_mode(state: State, subject: Subject) -> SubjectMode:
    own = state.modes.get(str(subject))
    if own is None and subject not in (EVERYTHING, GLOBALLY):
        raise NoMode(f"Subject '{subject}' does not have subject-level mode configured")
    return SubjectMode(own or SubjectMode.READWRITE.value)


def aliased(state: State, subject: Subject) -> Subject:
    """Returns the subject that a subject is an alias of, or the subject itself."""
    alias = state.configs.get(str(subject), {}).get("alias")
    return parse(str(alias), subject.context) if alias else subject


def level_in_scope(state: State, subject: Subject) -> CompatibilityLevel:
    return CompatibilityLevel(config_in_scope(state, subject)[LEVEL])
