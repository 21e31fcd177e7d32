"""Whether a new schema goes with older ones, in the directions that a level asks for. Pure.

backward: the new one reads what the older ones wrote. forward: the older ones read what it writes. full: both.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lakestream.coordination.schemas.scopes import Level
from lakestream.schemas.model import Schema

TROUBLES_MAX = 100
"""Told of one schema; more help nobody."""


class Older(NamedTuple):
    version: int
    schema: Schema


def troubles(level: Level, new: Schema, older: Sequence[Older]) -> list[str]:
    """Why not, in words; empty: it does."""
    found: list[str] = []
    for one in older:
        found += _troubles(level, new, one)
        if len(found) >= TROUBLES_MAX:
            return [*found[:TROUBLES_MAX], "and more"]
    return found


def _troubles(level: Level, new: Schema, older: Older) -> list[str]:
    if level is Level.NONE:
        return []
    old = older.schema
    if old.source.format is not new.source.format:
        said = f"version {older.version} is of type {old.source.format.value}, the new schema {new.source.format.value}"
        return [f"{said}: types cannot be mixed in a subject"]
    backward, forward = not level.value.startswith("FORWARD"), not level.value.startswith("BACKWARD")
    found = []
    if backward:
        found += [f"the new schema cannot read version {older.version}: {why}" for why in new.troubles_reading(old)]
    if forward:
        found += [f"version {older.version} cannot read the new schema: {why}" for why in old.troubles_reading(new)]
    return found
