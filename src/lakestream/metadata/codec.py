"""Decodes the values of metadata records."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from lakestream.errors import Corrupt
from lakestream.metadata.store import Record

T = TypeVar("T")


def decode_record(
    record: Record, decode: Callable[[bytes], T], kind: str, action: str = "restore it from a backup"
) -> T:
    """Returns the decoded value of a record. Raises Corrupt if it cannot be decoded. `kind` is for the message."""
    try:
        return decode(record.value)
    except (msgspec.MsgspecError, ValueError, IndexError) as error:
        raise Corrupt(f"metadata record {record.path} is not {kind} ({error}): {action}") from error


def check_format(record: Record, format: int, supported: int) -> None:
    """Raises Corrupt if a newer version of Lakestream wrote the record."""
    if format > supported:
        raise Corrupt(f"metadata record {record.path} was written by a newer Lakestream (format {format}): upgrade")
