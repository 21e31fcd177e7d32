"""Names of WAL objects and segments: creation time, writer and number. They sort by age."""

import re
from typing import NamedTuple

OBJECT_FOLDER = "wal/"

_OBJECT = re.compile(r"wal/(\d{15})-([^/]+)-(\d{10,})\.wal", re.ASCII)
_SEGMENT = re.compile(r"(\d{15})-([^/]+)-(\d{6,})\.seg", re.ASCII)


class WalName(NamedTuple):
    created_ms: int
    """By the writer's clock."""
    writer_id: str
    number: int


def object_key(created_ms: int, writer_id: str, sequence: int) -> str:
    return f"{OBJECT_FOLDER}{created_ms:015d}-{writer_id}-{sequence:010d}.wal"


def parse_object_key(key: str) -> WalName | None:
    return _parse(_OBJECT, key)


def segment_name(created_ms: int, writer_id: str, number: int) -> str:
    return f"{created_ms:015d}-{writer_id}-{number:06d}.seg"


def parse_segment_name(name: str) -> WalName | None:
    return _parse(_SEGMENT, name)


def _parse(pattern: re.Pattern[str], name: str) -> WalName | None:
    match = pattern.fullmatch(name)
    return WalName(int(match[1]), match[2], int(match[3])) if match else None
