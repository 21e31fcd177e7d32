"""Formats of the schema text in responses (`?format=…`).

PROTOBUF  serialized          a FileDescriptorProto in base64, as Confluent's serializers use it
          ignore_extensions   the stored text
AVRO      resolved            one text that includes the referenced schemas
"""

import re
from typing import TYPE_CHECKING, Final

from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Schema

if TYPE_CHECKING:
    from lakestream.schemas.protobuf.schema import ProtobufSchema  # imported at first use

SERIALIZED: Final = "serialized"
RESOLVED: Final = "resolved"
KNOWN: Final = {
    Format.PROTOBUF: ("default", SERIALIZED, "ignore_extensions"),
    Format.AVRO: ("default", RESOLVED),
    Format.JSON: ("default",),
}


_BLANKS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)


def plain(schema: Schema) -> str:
    """Returns the text to store: the text of the client without whitespace between the tokens of JSON. Protobuf is
    printed from its descriptor, because some serializers send text and others a descriptor."""
    if schema.source.format is Format.PROTOBUF:
        return _protobuf(schema).text
    return _BLANKS.sub(r"\1", schema.source.text)


def check_format(kind: Format, word: str) -> str:
    if (word := word.strip().lower()) not in KNOWN[kind]:
        raise Rejected(f"format {word[:40]!r} is not supported for {kind.value}: use {', '.join(KNOWN[kind])}")
    return word


def formatted(schema: Schema, word: str) -> str:
    if word == SERIALIZED:
        return _protobuf(schema).serialized
    return _resolved(schema) if word == RESOLVED else schema.source.text


def _protobuf(schema: Schema) -> "ProtobufSchema":
    from lakestream.schemas.protobuf.schema import ProtobufSchema

    assert isinstance(schema, ProtobufSchema)
    return schema


def _resolved(schema: Schema) -> str:
    from lakestream.schemas.avro.canonical import canonical
    from lakestream.schemas.avro.schema import AvroSchema

    assert isinstance(schema, AvroSchema)
    return canonical(schema.type, frozenset())
