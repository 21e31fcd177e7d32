"""Requests of the schema registry API: the context, subject, version and page that they name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from lakestream.coordination.schema_registry.errors import InvalidVersion
from lakestream.coordination.schema_registry.state import LATEST
from lakestream.coordination.schema_registry.subjects import (
    DEFAULT,
    EVERY,
    Subject,
    context_prefix,
    parse,
    parse_context,
)
from lakestream.errors import Rejected
from lakestream.protocol.rest.router import NotServed, RestCall

NUMBER_MAX: Final = 2**31 - 1
DIGITS_MAX: Final = 20
CONTEXTS: Final = "contexts"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegistryCall(RestCall):
    subject: Subject
    """The subject of the path, or the whole context if the endpoint has no subject."""
    context: str = DEFAULT
    """The context of names without one: of a path that begins with /contexts/{context}/."""

    @property
    def version(self) -> int:
        text = self.args[1].strip()
        if text.lower() == "latest" or text == "-1":
            return LATEST
        number = _parsed(text)
        if number is None or not 0 < number <= NUMBER_MAX:
            raise InvalidVersion(
                f"The specified version '{text[:40]}' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"'
            )
        return number

    @property
    def id(self) -> int:
        number = _parsed(self.args[0])
        if number is None or number > NUMBER_MAX:
            raise NotServed(f"there is no endpoint at {self.request.url.path}: an id is a number")
        return number

    @property
    def query_subject(self) -> Subject:
        """The subject of `?subject=`, which gives the context of a schema id."""
        return parse(self.query("subject"), self.context)

    @property
    def prefix(self) -> Subject | None:
        """The prefix of `?subjectPrefix=`, or None for all subjects of all contexts."""
        default = EVERY if self.context == DEFAULT else context_prefix(self.context)
        return self.prefix_or(default)

    def prefix_or(self, default: str) -> Subject | None:
        text = self.query("subjectPrefix", default)
        return None if text == EVERY else parse(text, self.context)

    def page(self, items: Sequence[T], size_max: int = 10**9) -> list[T]:
        """Returns the items that `offset` and `limit` select, at most `size_max`."""
        start, size = max(self._number("offset", 0), 0), self._number("limit", -1)
        return list(items[start : start + (min(size, size_max) if size >= 0 else size_max)])

    def _number(self, name: str, default: int) -> int:
        text = self.query(name) or str(default)
        if not text.removeprefix("-").isdecimal():
            raise Rejected(f"{name} is {text[:20]!r}: give a number")
        return int(text[:12])


def _parsed(text: str) -> int | None:
    """Returns None if the text is not a number. `int` raises ValueError for text of more than some thousand digits."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_MAX else None


def split_context(path: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Returns the context that a path begins with, or the default one, and the rest of the path."""
    if len(path) > 2 and path[0] == CONTEXTS:
        return parse_context(path[1]), path[2:]
    return DEFAULT, path
