"""Compatibility of a new schema with older ones, in the directions of a compatibility level. Pure.

Backward: the new schema can read values of the older ones. Forward: the older schemas can read values of the new one.
Full: both.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from lakestream.coordination.schema_registry.effective_config import CompatibilityLevel
from lakestream.schemas.model import Schema

INCOMPATIBILITIES_MAX: Final = 100
"""Listed for one schema."""
MESSAGE_SIZE_MAX: Final = 1_000
AND_MORE: Final = "and more"


class OlderVersion(NamedTuple):
    version: int
    schema: Schema


def find_incompatibilities(level: CompatibilityLevel, new: Schema, older: Sequence[OlderVersion]) -> list[str]:
    """Returns the reasons why the new schema is incompatible; empty if it is compatible."""
    found: list[str] = []
    for one in older:
        found += map(_cut, _incompatibilities(level, new, one))
        if len(found) >= INCOMPATIBILITIES_MAX:
            return [*found[:INCOMPATIBILITIES_MAX], AND_MORE]
    return found


def _cut(message: str) -> str:
    """Names in a schema may be as long as the schema."""
    return message if len(message) <= MESSAGE_SIZE_MAX else f"{message[:MESSAGE_SIZE_MAX]}…"


def _incompatibilities(level: CompatibilityLevel, new: Schema, older: OlderVersion) -> list[str]:
    if level is CompatibilityLevel.NONE:
        return []
    old = older.schema
    if old.source.format is not new.source.format:
        return [
            f"version {older.version} is of type {old.source.format.value}, the new schema of type "
            f"{new.source.format.value}: a subject cannot have schemas of several types"
        ]
    backward, forward = not level.value.startswith("FORWARD"), not level.value.startswith("BACKWARD")
    found = []
    if backward:
        found += [
            f"the new schema cannot read version {older.version}: {why}" for why in new.incompatibilities_reading(old)
        ]
    if forward:
        found += [
            f"version {older.version} cannot read the new schema: {why}" for why in old.incompatibilities_reading(new)
        ]
    return found
