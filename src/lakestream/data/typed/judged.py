"""The words between a broker and its judge: coordination/judging.py asks, data/typed/judge.py answers.

Each is a length of four bytes and MessagePack.
"""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

RULES_MAX: Final = 256
"""That a judge keeps. Both count in the same way, so the broker knows which."""
LENGTH: Final = struct.Struct("<I")


class Rules(msgspec.Struct, frozen=True):
    """A JSON Schema with all that it refers to."""

    dialect: str
    """The address of the dialect's own schema."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Names, as they stand in a `$ref`, and texts."""


class Ask(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Of the rules."""
    rules: Rules | None
    """None: they came with this number before."""
    values: Sequence[bytes]


class Answer(msgspec.Struct, frozen=True, array_like=True):
    wrong: Sequence[tuple[int, str]]
    """Places among the values that were asked about, and what is wrong with them."""
    refusal: str = ""
    """Why nothing can be held against these rules."""
