"""The words that all formats share: a schema as it was registered, and how one that was read looks to its users.

`read.py` gives the reader of a format; the registry asks it for canonical text and for what is incompatible, the table
asks it for the shape.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lakestream.schemas.shape import Struct


class Format(Enum):
    """As the registry's API spells them."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True)
class Reference:
    """Another schema that this one names, with its text and what that one names in turn."""

    name: str
    text: str
    references: tuple["Reference", ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A schema as somebody wrote it. Plain data: it is stored and travels to workers."""

    format: Format
    text: str
    references: tuple[Reference, ...] = ()


class Schema(Protocol):
    """A schema that was read. Rejected at reading: it is none, and why."""

    @property
    def source(self) -> Source: ...

    @property
    def canonical(self) -> str:
        """The text by which two schemas are the same for `normalize=true`; also what the API shows for it then."""
        ...

    def shape(self) -> Struct:
        """Its columns. A schema that is no record is one column `value`. What cannot be said in columns (recursion, …)
        is left out of the shape: values that have it do not come back whole, and keep their bytes."""
        ...

    def troubles_reading(self, older: "Schema") -> list[str]:
        """Why this schema cannot read what was written with the other, each with the field concerned; empty: it can."""
        ...
