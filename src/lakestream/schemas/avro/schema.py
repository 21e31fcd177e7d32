"""A parsed Avro schema, as the registry and the tables use it.

text  →  validate.py  →  parse.py (fastavro)  →  types.py  →  canonical.py · to_types.py · compatibility.py
"""

from dataclasses import dataclass, field
from functools import cached_property

from lakestream.schemas.avro.canonical import canonical
from lakestream.schemas.avro.compatibility import find_incompatibilities
from lakestream.schemas.avro.parse import parse_with_references
from lakestream.schemas.avro.to_types import columns_of
from lakestream.schemas.avro.types import AvroType
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.types import Struct


@dataclass(frozen=True, eq=False)
class AvroSchema:
    source: Source
    type: AvroType = field(repr=False)
    referred: frozenset[str] = field(repr=False)
    """Names defined by its references."""

    @cached_property
    def canonical(self) -> str:
        return canonical(self.type, self.referred)

    def shape(self) -> Struct:
        shape = columns_of(self.type).type
        assert isinstance(shape, Struct), "the shape of a schema is a struct"
        return shape

    def incompatibilities_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, AvroSchema):
            return [f"the older schema is of type {older.source.format.value}, this one is AVRO"]
        return find_incompatibilities(self.type, older.type)


def read_avro(source: Source) -> AvroSchema:
    """Parses an Avro schema. Rejected, with the problem and its field, if it is invalid."""
    type_, referred = parse_with_references(source)
    return AvroSchema(source, type_, referred)
