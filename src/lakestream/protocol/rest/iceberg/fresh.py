"""The header with which a client asks for a fresh table, and the same one in the answer.

X-Lakestream-Fresh: 10s          asked: wait so long at most until the table has all that was acknowledged
X-Lakestream-Fresh: yes          answered: it has
X-Lakestream-Fresh: no; …        answered: it has not, and why
"""

from collections.abc import Awaitable, Callable
from typing import Final

from lakestream.catalog.names import TableName
from lakestream.coordination.freshness import Fresh
from lakestream.durations import milliseconds, seconds
from lakestream.errors import Rejected

HEADER: Final = "X-Lakestream-Fresh"
WAIT_MS: Final = 10_000
WAIT_MS_MAX: Final = 60_000
SHOWN_MAX: Final = 1_000

MakeFresh = Callable[[TableName, int], Awaitable[Fresh]]


def asked_ms(text: str | None) -> int | None:
    """How long to wait; None: nobody asked."""
    word = (text or "").strip().lower()
    if word in ("", "no", "false"):
        return None
    if word in ("yes", "true"):
        return WAIT_MS
    try:
        wanted = milliseconds(word)
    except ValueError as error:
        raise Rejected(f"{HEADER}: {error}") from error
    if wanted > WAIT_MS_MAX:
        raise Rejected(f"{HEADER}: {word} is more than {seconds(WAIT_MS_MAX)}, the longest that a request may wait")
    return wanted


def told(fresh: Fresh) -> str:
    """As a header may be written: one line of plain letters."""
    said = " ".join(fresh.why.split()).encode("ascii", "replace").decode()
    word = "yes" if fresh.is_fresh else "no"
    return f"{word}; {said}"[:SHOWN_MAX] if said else word
