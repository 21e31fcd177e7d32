"""Identifiers of namespaces and tables, and their limits. `metadata/keys.py` turns them into keys."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from lakestream.errors import Rejected

Namespace: TypeAlias = tuple[str, ...]

LEVELS_MAX: Final = 8
NAME_BYTES_MAX: Final = 255
DEFAULT_NAMESPACE: Final[Namespace] = ("default",)


class TableName(NamedTuple):
    namespace: Namespace
    name: str

    def __str__(self) -> str:
        return ".".join((*self.namespace, self.name))


def check_namespace(levels: Sequence[str]) -> Namespace:
    if not 1 <= len(levels) <= LEVELS_MAX:
        raise Rejected(f"namespace of {len(levels)} levels: use 1 to {LEVELS_MAX}")
    return tuple(_checked(level, "namespace level") for level in levels)


def check_table_name(namespace: Sequence[str], name: str) -> TableName:
    return TableName(check_namespace(namespace), _checked(name, "table name"))


def dotted(namespace: Namespace) -> str:
    return ".".join(namespace)


def _checked(text: str, what: str) -> str:
    # Not printable are also the separator of levels in REST paths (0x1F) and lone surrogates.
    if not text or not text.isprintable():
        raise Rejected(f"invalid {what} {text[:60]!r}: use one or more printable characters")
    if len(text.encode()) > NAME_BYTES_MAX:
        raise Rejected(f"{what} {text[:40]!r}… is longer than {NAME_BYTES_MAX} bytes: choose a shorter one")
    return text
