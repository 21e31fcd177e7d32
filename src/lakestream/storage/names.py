"""Which keys an object may have, and which keys a prefix means. The same for every store, so that a key that works on
one works on all of them.

A key must also not be the folder of another key (`x` beside `x/y`): a bucket would take both, a disk cannot.
"""

from lakestream.errors import Rejected

TEMPORARY_PREFIX = ".part-"
"""Names that start so belong to unfinished writes of the local store; they are no objects."""

_KEY_BYTES_MAX = 900
_SEGMENT_BYTES_MAX = 255


def check_key(key: str) -> str:
    """The key itself, or Rejected. A key that passes cannot lead out of the store's root."""
    if len(key.encode("utf-8", "surrogatepass")) > _KEY_BYTES_MAX:
        raise Rejected(f"object key {key[:60]!r}… is longer than {_KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _check_segment(key, segment)
    return key


def _check_segment(key: str, segment: str) -> None:
    if segment in ("", ".", ".."):
        raise Rejected(f"object key {key!r} has the segment {segment!r}: use plain names between single slashes")
    # A backslash is a slash to Azure; what does not print comes back changed from one store or another.
    if "\\" in segment or not segment.isprintable():
        raise Rejected(f"object key {key!r} holds a backslash or a character that does not print")
    if segment.startswith(TEMPORARY_PREFIX):
        raise Rejected(f"object key {key!r}: names that start with {TEMPORARY_PREFIX!r} are for unfinished writes")
    if len(segment.encode()) > _SEGMENT_BYTES_MAX:
        raise Rejected(f"object key {key[:60]!r}… has a segment longer than {_SEGMENT_BYTES_MAX} bytes")


def folder(prefix: str) -> str:
    """What the keys under `prefix` start with: whole segments, so `a/b` holds `a/b/c` and not `a/bc`. Empty: all."""
    trimmed = prefix.strip("/")
    return f"{check_key(trimmed)}/" if trimmed else ""
