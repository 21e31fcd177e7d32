"""Model that all formats share: the source text of a schema, and the interface of a parsed schema.

`parse.py` selects the parser of a format. The registry uses the canonical text and the incompatibilities of a schema,
the table uses its shape.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lakestream.schemas.types import Struct


class Format(Enum):
    """Schema types, with the values of the registry's API."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class Reference:
    """A referenced schema: the name of the reference, the text of the schema, and its own references."""

    name: str
    text: str
    references: tuple["Reference", ...] = ()

    @property
    def size(self) -> int:
        """In characters, including its own references."""
        return len(self.text) + sum(one.size for one in self.references)


@dataclass(frozen=True, slots=True)
class Source:
    """Source text of a schema. Plain data: it is stored and sent to workers."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()

    @property
    def size(self) -> int:
        """In characters, including all references, each counted as often as it is referenced."""
        return len(self.text) + sum(one.size for one in self.references)


class Schema(Protocol):
    """A parsed schema. Parsing raises Rejected, with the reason, if the source is not a valid schema."""

    @property
    def source(self) -> Source: ...

    @property
    def canonical(self) -> str:
        """The normalized text. With `normalize=true`, two schemas are the same if these texts are equal, and the API
        returns this text."""
        ...

    def shape(self) -> Struct:
        """Returns the fields that become columns. A schema that is not a record has one field, `value`.

        Parts that columns cannot represent, such as recursion, are omitted. Values that contain such a part cannot be
        restored from their columns, so the table also stores their bytes."""
        ...

    def incompatibilities_reading(self, older: "Schema") -> list[str]:
        """Returns the reasons why this schema cannot read values of the older one, each with its field; empty if it
        can."""
        ...
