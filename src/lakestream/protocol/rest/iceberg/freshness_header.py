"""The HTTP header with which a client requests a fresh table, and the same header in the response.

X-Lakestream-Fresh: 10s          request: wait up to this long until the table has all acknowledged records
X-Lakestream-Fresh: yes          response: the table has them
X-Lakestream-Fresh: no; …        response: it does not have them, and the reason
"""

from collections.abc import Awaitable, Callable
from typing import Final

from lakestream.catalog.identifiers import TableName
from lakestream.config.parsing import format_seconds, parse_milliseconds
from lakestream.coordination.freshness import FreshReadResult
from lakestream.errors import Rejected

HEADER: Final = "X-Lakestream-Fresh"
WAIT_MS: Final = 10_000
WAIT_MS_MAX: Final = 60_000
SHOWN_MAX: Final = 1_000

MakeFresh = Callable[[TableName, int], Awaitable[FreshReadResult]]


def requested_wait_ms(text: str | None) -> int | None:
    """Returns how long the request may wait, or None if the client does not request a fresh table."""
    word = (text or "").strip().lower()
    if word in ("", "no", "false"):
        return None
    if word in ("yes", "true"):
        return WAIT_MS
    try:
        wait_ms = parse_milliseconds(word)
    except ValueError as error:
        raise Rejected(f"{HEADER}: {error}") from error
    if wait_ms > WAIT_MS_MAX:
        raise Rejected(
            f"{HEADER}: {word} is more than {format_seconds(WAIT_MS_MAX)}, the longest that a request may wait"
        )
    return wait_ms


def header_value(fresh: FreshReadResult) -> str:
    """Returns the header's value: one line of ASCII characters."""
    reason = " ".join(fresh.reason.split()).encode("ascii", "replace").decode()
    word = "yes" if fresh.is_fresh else "no"
    return f"{word}; {reason}"[:SHOWN_MAX] if reason else word
