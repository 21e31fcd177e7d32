"""Requests and responses between a broker and its validator process, in MessagePack.

coordination/validation/validator_process.py sends the requests, data/typed/json_schema/validator_main.py responds.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

SCHEMAS_MAX: Final = 256
"""Schemas that a validator process caches. Both sides evict in the same order, so the broker knows which are cached."""


class ValidatorSchema(msgspec.Struct, frozen=True):
    """JSON Schema with its references."""

    dialect: str
    """URI of the dialect's meta-schema."""
    text: str
    references: tuple[tuple[str, str], ...] = ()
    """Names, as a `$ref` has them, and texts."""


class ValidationRequest(msgspec.Struct, frozen=True, array_like=True):
    number: int
    """Of the schema."""
    schema: ValidatorSchema | None
    """None: an earlier request had the schema with this number."""
    values: Sequence[bytes]


class ValidationResponse(msgspec.Struct, frozen=True, array_like=True):
    invalid: Sequence[tuple[int, str]]
    """Places of invalid values in the request, and the reasons."""
    error: str = ""
    """Why no values can be validated with this schema; empty if they can."""
