"""Subscriptions to a pattern of topic names: RE2 syntax, matched against the whole name.

RE2 matches in time linear in the pattern's program and the name: up to 12 µs per instruction for the longest name, in
which other threads run. So the program is bounded, and a client's pattern is first matched in a thread.
"""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from lakestream.coordination.groups.errors import GroupError, GroupRequestFailed

PATTERN_BYTES_MAX: Final = 8_192
PROGRAM_MAX: Final = 5_000
"""Instructions of RE2: four hundred names, or a thousand repetitions of a class of characters."""
MATCH_S_MAX: Final = 1.0


def check(pattern: str) -> None:
    """Raises GroupRequestFailed if the pattern is invalid or too large."""
    size = _compiled(pattern).programsize
    if size > PROGRAM_MAX:
        raise _invalid(f"the pattern has {size} instructions in RE2: the limit is {PROGRAM_MAX}, repeat less")


def matching_in_time(pattern: str, names: Sequence[str]) -> list[str]:
    """Returns the matching names. Raises GroupRequestFailed if the pattern is invalid, or takes longer than
    MATCH_S_MAX. Run it in a thread."""
    check(pattern)
    compiled, end_s = _compiled(pattern), time.monotonic() + MATCH_S_MAX
    found = []
    for name in names:
        if compiled.fullmatch(name) is not None:
            found.append(name)
        if time.monotonic() > end_s:
            raise _invalid(
                f"matching the pattern with {len(names)} names takes more than {MATCH_S_MAX:g} s: repeat less"
            )
    return found


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    compiled = _compiled(pattern)
    return [name for name in names if compiled.fullmatch(name) is not None]


@lru_cache(maxsize=1_000)
def _compiled(pattern: str) -> Any:
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise _invalid(f"the pattern has {len(pattern.encode())} bytes: the limit is {PATTERN_BYTES_MAX}")
    try:
        return re2.compile(pattern, _quiet())
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise _invalid(f"invalid pattern {pattern!r}: {text}") from None


def _invalid(text: str) -> GroupRequestFailed:
    return GroupRequestFailed(GroupError.INVALID_REGULAR_EXPRESSION, text)


def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options
