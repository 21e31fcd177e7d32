"""Counts the values of JSON text before it is parsed: a value takes a byte in the text and a hundred in memory."""

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


def _marks(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
