"""The codec of a writer. Formats are imported when they are first needed: their kernels take a while to load."""

from lakestream.data.typed.codec import Codec
from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Reference, Source
from lakestream.schemas.writers import Writer


def codec_of(writer: Writer) -> Codec:
    """Rejected: its schema is none any more, or of a format that nobody knows."""
    match writer.format:
        case Format.AVRO.value:
            from lakestream.data.typed.avro import AvroCodec
            from lakestream.schemas.avro.schema import read_avro

            return AvroCodec(read_avro(source_of(writer)))
        case Format.PROTOBUF.value:
            from lakestream.data.typed.protobuf import ProtobufCodec
            from lakestream.schemas.protobuf.schema import read_protobuf

            return ProtobufCodec(read_protobuf(source_of(writer), writer.message))
        case Format.JSON.value:
            from lakestream.data.typed.json_codec import json_codec

            return json_codec(writer)
    raise Rejected(f"values of schema {writer.number} are {writer.format}, which is not read here")


def source_of(writer: Writer) -> Source:
    """The schema with what it refers to, each before those that need it."""
    references = tuple(Reference(name, text) for name, text in writer.references)
    return Source(Format(writer.format), writer.text, references)
