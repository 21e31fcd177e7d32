"""Subjects and their contexts.

    orders-value            a subject of the default context
    :.trial:orders-value    a subject of the context .trial
    :.trial:                the context itself, where a context is allowed (settings, prefixes)

Ids are assigned per context: the same id may be a different schema in each context.
"""

from typing import Final, NamedTuple

from lakestream.coordination.schema_registry.errors import InvalidSubject
from lakestream.schemas.writer_schema import DEFAULT_CONTEXT

DEFAULT: Final = DEFAULT_CONTEXT
GLOBAL: Final = ".__GLOBAL"
"""A context for settings only. They apply to all contexts without settings of their own."""
EVERY: Final = ":*:"
"""Prefix for the subjects of all contexts."""
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
    """Parses a subject. `context` is the context of a name without one."""
    if not text.startswith(":."):
        return Subject(context, text)
    named, _, name = text[1:].partition(":")
    return Subject(named, name)


def parse_context(text: str) -> str:
    """Parses the context of a path: `.trial`, `trial` or `:.trial:`."""
    bare = text.removeprefix(":").removesuffix(":")
    if ":" in bare:
        raise InvalidSubject(f"context {text!r} has a colon inside its name")
    return bare if bare.startswith(".") else f".{bare}"


def check_context(text: str) -> str:
    """Parses a context, and checks that schemas can be registered in it."""
    context = parse_context(text)
    if context == GLOBAL or "*" in context:
        raise InvalidSubject(f"context {text!r} is reserved: schemas cannot be registered in it")
    check_text(Subject(context, ""))
    return context


def context_prefix(context: str) -> str:
    return "" if context == DEFAULT else f":{context}:"


def check(subject: Subject) -> Subject:
    """Checks that schemas can be registered under a subject, and returns it."""
    text = str(subject)
    if not subject.name or subject.name in RESERVED or subject.context == GLOBAL:
        raise InvalidSubject(f"The specified subject '{text}' is not valid: the name is empty or reserved")
    return check_text(subject)


def check_text(subject: Subject) -> Subject:
    text = str(subject)
    if any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in text):
        raise InvalidSubject(f"The specified subject {text!r} is not valid: it contains a control character")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in text) or len(text) > SUBJECT_MAX:
        raise InvalidSubject(f"The specified subject is not valid: use at most {SUBJECT_MAX} Unicode characters")
    return subject
