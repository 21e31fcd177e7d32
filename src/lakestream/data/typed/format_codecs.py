"""Codec of a writer schema. The modules of a format are imported when first needed: loading their kernels is slow."""

from lakestream.data.typed.codec import Codec
from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.writer_schema import WriterSchema


def codec_of(writer: WriterSchema) -> Codec:
    """Returns the codec. Rejected: the schema is invalid, or its format is not supported."""
    match writer.format:
        case Format.AVRO.value:
            from lakestream.data.typed.avro.codec import AvroCodec
            from lakestream.schemas.avro.schema import read_avro

            return AvroCodec(read_avro(source_of(writer)))
        case Format.PROTOBUF.value:
            from lakestream.data.typed.protobuf.codec import ProtobufCodec
            from lakestream.schemas.protobuf.schema import read_protobuf

            return ProtobufCodec(read_protobuf(source_of(writer), writer.message))
        case Format.JSON.value:
            from lakestream.data.typed.json.codec import json_codec

            return json_codec(writer)
    raise Rejected(f"schema {writer.number} has the format {writer.format}, which is not supported")


def source_of(writer: WriterSchema) -> Source:
    """Returns the schema with its references, each before the schemas that use it."""
    references = tuple(Reference(name, text) for name, text in writer.references)
    return Source(Format(writer.format), writer.text, references)
