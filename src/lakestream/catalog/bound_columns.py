"""The ids of the columns that values are made of again, as a property of the table keeps them: `16-30,33`. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from lakestream.catalog.shapes import Json

BOUND: Final = "lakestream.bound-columns"
IDS_MAX: Final = 100_000
_RANGES: Final = re.compile(r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*")


def bound_ids(metadata: Json) -> frozenset[int]:
    """What somebody else has put there and nobody can read counts for nothing."""
    text = metadata["properties"].get(BOUND, "")
    if not _RANGES.fullmatch(text):
        return frozenset()
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first) + 1, int(first) + IDS_MAX - len(found))))
    return frozenset(found)


def text_of_ids(ids: Iterable[int]) -> str:
    parts: list[list[int]] = []
    for one in sorted(ids):
        if parts and parts[-1][1] == one - 1:
            parts[-1][1] = one
        else:
            parts.append([one, one])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in parts)
