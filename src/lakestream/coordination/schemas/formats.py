"""A schema in another spelling than the one it is kept in, where a client asks for it (`?format=…`).

PROTOBUF  serialized          base64 of a FileDescriptorProto: what the stock serializers work with
          ignore_extensions   as it is kept
AVRO      resolved            with the schemas that it refers to written out in their places
"""

import re
from typing import TYPE_CHECKING, Final

from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Schema

if TYPE_CHECKING:
    from lakestream.schemas.protobuf.schema import ProtobufSchema  # imported when one is read

SERIALIZED: Final = "serialized"
RESOLVED: Final = "resolved"
KNOWN: Final = {
    Format.PROTOBUF: ("default", SERIALIZED, "ignore_extensions"),
    Format.AVRO: ("default", RESOLVED),
    Format.JSON: ("default",),
}


_BLANKS: Final = re.compile(r'("(?:[^"\\]|\\.)*")|[ \t\r\n]+', re.DOTALL)


def plain(schema: Schema) -> str:
    """As it is kept: JSON without the blanks between its words, else as it was written. Protobuf in one way of writing
    it, since some serializers send text and others a descriptor."""
    if schema.source.format is Format.PROTOBUF:
        return _protobuf(schema).text
    return _BLANKS.sub(r"\1", schema.source.text)


def check_format(kind: Format, word: str) -> str:
    if (word := word.strip().lower()) not in KNOWN[kind]:
        raise Rejected(f"format {word[:40]!r} is not served for {kind.value}, but {', '.join(KNOWN[kind])}")
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
