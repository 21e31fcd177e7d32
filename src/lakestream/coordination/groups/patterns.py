"""Patterns of topic names that clients subscribe to (RE2 syntax, the whole name has to fit). RE2 takes no longer than
its input is long, whatever a client thinks up."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]

from lakestream.coordination.groups.refusals import Refusal, Refused

PATTERN_BYTES_MAX: Final = 8_192


def check(pattern: str) -> None:
    """Refused: it cannot be read."""
    _compiled(pattern)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    compiled = _compiled(pattern)
    return [name for name in names if compiled.fullmatch(name) is not None]


@lru_cache(maxsize=1_000)
def _compiled(pattern: str) -> Any:
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        text = f"a pattern may have {PATTERN_BYTES_MAX} bytes, not {len(pattern.encode())}"
        raise Refused(Refusal.INVALID_REGULAR_EXPRESSION, text)
    try:
        return re2.compile(pattern, _quiet())
    except re2.error as error:
        reason = error.args[0]
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise Refused(Refusal.INVALID_REGULAR_EXPRESSION, f"the pattern {pattern!r} cannot be read: {text}") from None


def _quiet() -> Any:
    options = re2.Options()
    options.log_errors = False
    return options
