"""One request, taken apart: which context, subject, version and page it is about.

Paths are taken apart before they are decoded: a subject may hold a slash, which arrives as %2F. A plus is a plus.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import unquote

from starlette.requests import Request

from lakestream.coordination.schemas.names import DEFAULT, EVERY, Subject, context_prefix, parse, parse_context
from lakestream.coordination.schemas.refusals import InvalidVersion
from lakestream.coordination.schemas.state import LATEST
from lakestream.errors import Rejected
from lakestream.protocol.rest.registry.errors import NotServed

NUMBER_MAX: Final = 2**31 - 1
CONTEXTS: Final = "contexts"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    request: Request
    args: tuple[str, ...]
    subject: Subject
    """The first argument, where it is one; else all of the context."""
    context: str = DEFAULT
    """In which names are meant that do not say theirs: of a path that begins with /contexts/{context}/."""

    @property
    def version(self) -> int:
        text = self.args[1].strip()
        if text.lower() == "latest" or text == "-1":
            return LATEST
        if not text.isdecimal() or not 0 < int(text[:20]) <= NUMBER_MAX:
            raise InvalidVersion(
                f"The specified version '{text[:40]}' is not a valid version id. "
                'Allowed values are between [1, 2^31-1] and the string "latest"'
            )
        return int(text)

    @property
    def id(self) -> int:
        text = self.args[0]
        if not text.isdecimal() or int(text[:20]) > NUMBER_MAX:
            raise NotServed(f"there is nothing at {self.request.url.path}: an id is a number")
        return int(text)

    @property
    def asked_subject(self) -> Subject:
        """Of `?subject=`, which says in which context an id is meant."""
        return parse(self.query("subject"), self.context)

    @property
    def prefix(self) -> Subject | None:
        """Of `?subjectPrefix=`; None: everything in all contexts."""
        default = EVERY if self.context == DEFAULT else context_prefix(self.context)
        return self.prefix_or(default)

    def prefix_or(self, default: str) -> Subject | None:
        text = self.query("subjectPrefix", default)
        return None if text == EVERY else parse(text, self.context)

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, *names: str) -> bool:
        return any(self.query(name).lower() == "true" for name in names)

    def page(self, found: Sequence[T], most: int = 10**9) -> list[T]:
        """What `offset` and `limit` choose, at most so many."""
        start, size = max(self._number("offset", 0), 0), self._number("limit", -1)
        return list(found[start : start + (min(size, most) if size >= 0 else most)])

    def _number(self, name: str, default: int) -> int:
        text = self.query(name) or str(default)
        if not text.removeprefix("-").isdecimal():
            raise Rejected(f"{name} is {text[:20]!r}: give a number")
        return int(text[:12])


def segments(request: Request) -> tuple[str, tuple[str, ...]]:
    """The context that a path names, and the parts of the path behind it, each decoded by itself."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    text = raw.partition(b"?")[0].decode("ascii", "replace").strip("/")
    try:
        parts = tuple(unquote(part, errors="strict") for part in text.split("/")) if text else ()
    except UnicodeDecodeError as error:
        raise Rejected("the path of the request is not UTF-8") from error
    if len(parts) > 2 and parts[0] == CONTEXTS:
        return parse_context(parts[1]), parts[2:]
    return DEFAULT, parts
