"""One request, taken apart: which namespace, table and page it is about.

Paths are taken apart before they are decoded: a table's name may hold a slash, which arrives as %2F.
"""

from typing import Final, NamedTuple
from urllib.parse import unquote_plus

from starlette.requests import Request

from lakestream.catalog.names import Namespace, TableName, check_namespace, check_table_name
from lakestream.errors import Rejected

SEPARATOR: Final = "\x1f"
"""Between the levels of a namespace, in paths and queries."""
PAGE_SIZE_MAX: Final = 1_000


class Page(NamedTuple):
    start: str
    size: int


class Call(NamedTuple):
    request: Request
    args: tuple[str, ...]

    @property
    def namespace(self) -> Namespace:
        return check_namespace(self.args[0].split(SEPARATOR))

    @property
    def table(self) -> TableName:
        return check_table_name(self.namespace, self.args[1])

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def flag(self, name: str) -> bool:
        return self.query(name).lower() == "true"

    @property
    def page(self) -> Page | None:
        """None: the client wants everything at once."""
        if "pageToken" not in self.request.query_params and "pageSize" not in self.request.query_params:
            return None
        text = self.query("pageSize") or str(PAGE_SIZE_MAX)
        if not text.isdecimal() or int(text[:10]) == 0:
            raise Rejected(f"pageSize is {text[:20]!r}: give a number from 1 on")
        return Page(self.query("pageToken"), min(int(text[:10]), PAGE_SIZE_MAX))


def segments(request: Request) -> tuple[str, ...]:
    """The parts of the path behind /v1/, each decoded by itself; a plus is a space, as Java's clients write it."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("ascii", "replace")
    try:
        return tuple(unquote_plus(part, errors="strict") for part in path.strip("/").split("/")[1:])
    except UnicodeDecodeError as error:
        raise Rejected("the path of the request is not UTF-8") from error
