"""Selects the parser of a format, and converts between `Source` (model.py) and `WriterSchema` (writer_schema.py).

The modules of a format are imported at first use: most brokers never need all of them.
"""

from collections.abc import Iterator

from lakestream.schemas.model import Format, Reference, Schema, Source
from lakestream.schemas.writer_schema import WriterSchema


def read(source: Source) -> Schema:
    """Parses a schema. Rejected, with the place, if it is not a valid schema of its format."""
    match source.format:
        case Format.AVRO:
            from lakestream.schemas.avro.schema import read_avro

            return read_avro(source)
        case Format.JSON:
            from lakestream.schemas.json.schema import read_json_schema

            return read_json_schema(source)
        case Format.PROTOBUF:
            from lakestream.schemas.protobuf.schema import read_protobuf

            return read_protobuf(source)


def flatten_references(source: Source) -> tuple[tuple[str, str], ...]:
    """Returns name and text of all referenced schemas, each once, and each before the schemas that refer to it."""
    return tuple(dict.fromkeys(_in_order(source.references)))


def _in_order(references: tuple[Reference, ...]) -> Iterator[tuple[str, str]]:
    for one in references:
        yield from _in_order(one.references)
        yield one.name, one.text


def source_of(writer: WriterSchema) -> Source:
    """Returns the source of a writer schema. ValueError if its format has no schemas."""
    references = tuple(Reference(name, text) for name, text in writer.references)
    return Source(Format(writer.format), writer.text, references)


def schema_of(writer: WriterSchema) -> Schema:
    """Parses a writer schema. Rejected if a schema that was valid when it was stored cannot be parsed any more;
    ValueError as in `source_of`."""
    return read_message(source_of(writer), writer.message)


def read_message(source: Source, message: tuple[int, ...] = ()) -> Schema:
    """Parses a schema. `message` selects a message of a Protobuf schema."""
    if source.format is Format.PROTOBUF and message:
        from lakestream.schemas.protobuf.schema import read_protobuf

        return read_protobuf(source, message)
    return read(source)
