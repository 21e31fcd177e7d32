"""Subjects and the contexts that they live in.

    orders-value            in the default context
    :.trial:orders-value    in the context .trial
    :.trial:                that context itself, where one can be meant (settings, prefixes)

Ids are given per context: the same id in two contexts may be two schemas.
"""

from typing import Final, NamedTuple

from lakestream.coordination.schemas.refusals import InvalidSubject
from lakestream.schemas.writers import DEFAULT_CONTEXT

DEFAULT: Final = DEFAULT_CONTEXT
GLOBAL: Final = ".__GLOBAL"
"""A context for settings only: what holds for all contexts that say nothing themselves."""
EVERY: Final = ":*:"
"""As a prefix: subjects of all contexts."""
RESERVED: Final = frozenset({"__GLOBAL", "__EMPTY"})
SUBJECT_MAX: Final = 1_000


class Subject(NamedTuple):
    context: str
    name: str

    def __str__(self) -> str:
        return f"{context_prefix(self.context)}{self.name}"

    @property
    def is_context(self) -> bool:
        return not self.name


EVERYTHING: Final = Subject(DEFAULT, "")


def parse(text: str, context: str = DEFAULT) -> Subject:
    """`context`: of a name that does not say its own."""
    if not text.startswith(":."):
        return Subject(context, text)
    named, _, name = text[1:].partition(":")
    return Subject(named, name)


def parse_context(text: str) -> str:
    """A context as paths have it: `.trial`, `trial` or `:.trial:`."""
    bare = text.removeprefix(":").removesuffix(":")
    if ":" in bare:
        raise InvalidSubject(f"context {text!r} has a colon inside its name")
    return bare if bare.startswith(".") else f".{bare}"


def check_context(text: str) -> str:
    """One that schemas can be registered in."""
    context = parse_context(text)
    if context == GLOBAL or "*" in context:
        raise InvalidSubject(f"context {text!r} is no context that schemas can be registered in")
    check_text(Subject(context, ""))
    return context


def context_prefix(context: str) -> str:
    return "" if context == DEFAULT else f":{context}:"


def check(subject: Subject) -> Subject:
    """A subject that schemas can be registered under."""
    text = str(subject)
    if not subject.name or subject.name in RESERVED or subject.context == GLOBAL:
        raise InvalidSubject(f"The specified subject '{text}' is not valid: nothing can be registered under it")
    return check_text(subject)


def check_text(subject: Subject) -> Subject:
    text = str(subject)
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in text):
        raise InvalidSubject(f"The specified subject {text!r} is not valid: it has a control character")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in text) or len(text) > SUBJECT_MAX:
        raise InvalidSubject(f"The specified subject is not valid: give at most {SUBJECT_MAX} characters of Unicode")
    return subject
