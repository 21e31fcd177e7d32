"""Limits of JSON text of clients, which are checked before a value of it is used.

values    a value takes a byte in the text and a hundred in memory
nesting   Python's functions that call themselves for each level end with a RecursionError
"""

from itertools import accumulate
from typing import Final

from lakestream.model import Buffer


def has_more_values(text: Buffer, count_max: int) -> bool:
    """Returns whether JSON text has more objects, arrays and members of both than `count_max`.

    Takes milliseconds for most texts, as long as a copy for those with many commas in strings.
    """
    raw = bytes(text)
    if _marks(raw) <= count_max:
        return False
    raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if raw.count(b'"') > 4 * count_max:  # a member has at most two strings: its name and its value
        return True
    return _marks(b"".join(raw.split(b'"')[::2])) > count_max


NESTING_MAX: Final = 300
"""Levels of objects and arrays. A schema of 64 levels, the maximum, has 200."""


def is_nested_too_deeply(text: Buffer) -> bool:
    """Returns whether valid JSON text has more than NESTING_MAX levels."""
    raw = bytes(text)
    if raw.count(b"[") + raw.count(b"{") <= NESTING_MAX:
        return False
    raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(raw.split(b'"')[::2]).translate(None, _NO_BRACKETS)
    return max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0) > NESTING_MAX


_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _marks(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
