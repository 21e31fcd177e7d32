"""An Avro schema, read: what the registry and tables ask of it.

text  →  tidy.py  →  names.py (fastavro)  →  types.py  →  canonical.py · shape.py · resolution.py
"""

from dataclasses import dataclass, field
from functools import cached_property

from lakestream.schemas.avro.canonical import canonical
from lakestream.schemas.avro.names import read_all
from lakestream.schemas.avro.resolution import troubles
from lakestream.schemas.avro.shape import columns_of
from lakestream.schemas.avro.types import AvroType
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.shape import Struct


@dataclass(frozen=True, eq=False)
class AvroSchema:
    source: Source
    type: AvroType = field(repr=False)
    referred: frozenset[str] = field(repr=False)
    """Names that its references define."""

    @cached_property
    def canonical(self) -> str:
        return canonical(self.type, self.referred)

    def shape(self) -> Struct:
        found = columns_of(self.type).type
        assert isinstance(found, Struct), "a value is a struct of columns"
        return found

    def troubles_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, AvroSchema):
            return [f"it was written as {older.source.format.value}, which is not Avro"]
        return troubles(self.type, older.type)


def read_avro(source: Source) -> AvroSchema:
    """Rejected: it is no Avro schema, what is wrong, and with which field."""
    type_, referred = read_all(source)
    return AvroSchema(source, type_, referred)
