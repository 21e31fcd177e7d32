"""The reader of each format. Formats are imported when they are first needed: most brokers never need all of them."""

from lakestream.schemas.model import Format, Schema, Source


def read(source: Source) -> Schema:
    """Rejected: it is no schema of its format, and where."""
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
