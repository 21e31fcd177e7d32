"""Validates object keys and prefixes, with the same rules for every store.

A key must also not be the folder of another key (`x` and `x/y`): a bucket accepts both, a disk cannot.
"""

from lakestream.errors import Rejected

TEMPORARY_PREFIX = ".part-"
"""Names with this prefix belong to unfinished writes of the local store. They are not objects."""

KEY_BYTES_MAX = 900
_SEGMENT_BYTES_MAX = 255


def check_key(key: str) -> str:
    """Returns the key, or raises Rejected. A valid key cannot lead out of the store's root."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES_MAX:
        raise Rejected(f"object key {key[:60]!r}… is longer than {KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _check_segment(key, segment)
    return key


def _check_segment(key: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        raise Rejected(f"object key {key!r} has the segment {segment!r}: use plain names between single slashes")
    # Azure treats a backslash as a slash. Some stores change characters that are not printable.
    if "\\" in segment or not segment.isprintable():
        raise Rejected(f"object key {key!r} contains a backslash or a character that is not printable")
    if segment.startswith(TEMPORARY_PREFIX):
        raise Rejected(f"object key {key!r}: names that start with {TEMPORARY_PREFIX!r} are for unfinished writes")
    if len(segment.encode()) > _SEGMENT_BYTES_MAX:
        raise Rejected(f"object key {key[:60]!r}… has a segment longer than {_SEGMENT_BYTES_MAX} bytes")


def folder(prefix: str) -> str:
    """Returns the start of all keys under `prefix`: whole segments, so `a/b` has `a/b/c`, not `a/bc`. Empty: all."""
    trimmed = prefix.strip("/")
    return f"{check_key(trimmed)}/" if trimmed else ""
