"""What holds for a subject: its own settings, else those of its context, else those of all. Pure."""

from enum import Enum
from typing import Any, Final

from lakestream.coordination.schemas.names import DEFAULT, EVERYTHING, GLOBAL, Subject, parse
from lakestream.coordination.schemas.refusals import InvalidLevel, InvalidMode, NoMode, NotConfigured
from lakestream.coordination.schemas.state import State

Config = dict[str, Any]


class Level(Enum):
    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


class Mode(Enum):
    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """Read-only, whatever a subject says for itself."""
    IMPORT = "IMPORT"

    @property
    def is_read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


LEVEL: Final = "compatibilityLevel"
DEFAULT_CONFIG: Final[Config] = {LEVEL: Level.BACKWARD.value}
INHERITED: Final = ("normalize", "compatibilityGroup")
"""What a subject with settings of its own still takes from those of all."""
GLOBALLY: Final = Subject(GLOBAL, "")


def level(text: object) -> Level:
    try:
        return Level(str(text).upper())
    except ValueError:
        known = ", ".join(one.value for one in Level)
        raise InvalidLevel(f"Invalid compatibility level {str(text)[:40]!r}. Valid values are {known}") from None


def mode(text: object) -> Mode:
    try:
        return Mode(str(text).upper())
    except ValueError:
        known = ", ".join(one.value for one in Mode)
        raise InvalidMode(f"Invalid mode {str(text)[:40]!r}. Valid values are {known}") from None


def _above(subject: Subject) -> list[str]:
    """Where else to look, in order."""
    around = EVERYTHING if subject.context == DEFAULT else Subject(subject.context, "")
    return [str(around), str(GLOBALLY)]


def config_in_scope(state: State, subject: Subject) -> Config:
    own = state.configs.get(str(subject))
    if own is None:
        found = next((state.configs[name] for name in _above(subject) if name in state.configs), {})
        return DEFAULT_CONFIG | found
    everywhere = state.configs.get("", {})
    return DEFAULT_CONFIG | {name: everywhere[name] for name in INHERITED if name in everywhere} | own


def own_config(state: State, subject: Subject) -> Config:
    """NotConfigured: it has none; the one of all always has."""
    own = state.configs.get(str(subject))
    if own is None and subject not in (EVERYTHING, GLOBALLY):
        raise NotConfigured(f"Subject '{subject}' does not have subject-level compatibility configured")
    return DEFAULT_CONFIG | (own or {})


def mode_in_scope(state: State, subject: Subject) -> Mode:
    above = [Mode(state.modes[name]) for name in _above(subject) if name in state.modes]
    if Mode.READONLY_OVERRIDE in above:
        return Mode.READONLY_OVERRIDE
    if (own := state.modes.get(str(subject))) is not None:
        return Mode(own)
    return above[0] if above else Mode.READWRITE


def own_mode(state: State, subject: Subject) -> Mode:
    own = state.modes.get(str(subject))
    if own is None and subject not in (EVERYTHING, GLOBALLY):
        raise NoMode(f"Subject '{subject}' does not have subject-level mode configured")
    return Mode(own or Mode.READWRITE.value)


def aliased(state: State, subject: Subject) -> Subject:
    """The subject that a name stands for, if its settings say that it is only an alias."""
    alias = state.configs.get(str(subject), {}).get("alias")
    return parse(str(alias), subject.context) if alias else subject


def level_in_scope(state: State, subject: Subject) -> Level:
    return Level(config_in_scope(state, subject)[LEVEL])
