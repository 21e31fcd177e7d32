"""Names of namespaces and tables: any text that people and engines use, within bounds. How they become keys is in
`metadata/keys.py`.
"""

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
        raise Rejected(f"a namespace has 1 to {LEVELS_MAX} levels, not {len(levels)}")
    return tuple(_checked(level, "a namespace's level") for level in levels)


def check_table_name(namespace: Sequence[str], name: str) -> TableName:
    return TableName(check_namespace(namespace), _checked(name, "a table's name"))


def shown(namespace: Namespace) -> str:
    return ".".join(namespace)


def _checked(text: str, what: str) -> str:
    # What does not print includes the separator of levels in REST paths (0x1F) and lone surrogates.
    if not text or not text.isprintable():
        raise Rejected(f"{what} is {text[:60]!r}: give one or more characters that print")
    if len(text.encode()) > NAME_BYTES_MAX:
        raise Rejected(
            f"{what} starts with {text[:40]!r} and is longer than {NAME_BYTES_MAX} bytes: choose a shorter one"
        )
    return text
