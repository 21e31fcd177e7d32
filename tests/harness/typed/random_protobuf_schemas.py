"""Random Protobuf schemas, made without a compiler."""

import base64
import random
from typing import Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import ProtobufSchema, read_protobuf
from lakestream.schemas.protobuf.to_types import WRAPPERS

F: Final = FieldDescriptorProto
SCALARS: Final = [kind for kind in F.Type.values() if kind not in (F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM)]
KEYS: Final = [kind for kind in SCALARS if kind not in (F.TYPE_FLOAT, F.TYPE_DOUBLE, F.TYPE_BYTES)]
KNOWN: Final = [
    *(".google.protobuf." + name for name in ("Timestamp", "Duration", "Empty", "Struct")),
    *("." + name for name in sorted(WRAPPERS)),
]


def schema_of(luck: random.Random) -> ProtobufSchema:
    file = FileDescriptorProto(name="x.proto", package="p", syntax=luck.choice(["proto2", "proto3"]))
    file.dependency.extend(
        f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "empty", "struct", "wrappers")
    )
    enum = file.enum_type.add(name="E")
    for place in range(luck.randint(1, 6)):
        enum.value.add(
            name=f"V{place}" * luck.randint(1, 3), number=place if luck.random() < 0.7 else -place * 1_000_003
        )
    names = [f"M{place}" for place in range(luck.randint(1, 4))]
    for name in names:
        message = file.message_type.add(name=name)
        numbers = luck.sample([*range(1, 40), 1000, 20_000, 2**29 - 1], luck.randint(1, 12))
        for number in numbers:
            _add_field(message, number, names, file.syntax == "proto3", luck)
        _add_oneof(message, names, luck)
    text = base64.b64encode(file.SerializeToString()).decode()
    return read_protobuf(Source(Format.PROTOBUF, text))


def _add_field(message: DescriptorProto, number: int, names: list[str], proto3: bool, luck: random.Random) -> None:
    field = message.field.add(name=f"f{number}", number=number, label=F.LABEL_OPTIONAL)
    _choose_type(field, names, luck)
    match luck.randint(0, 5):
        case 0:
            field.label = F.LABEL_REPEATED
            if field.type not in (F.TYPE_MESSAGE, F.TYPE_STRING, F.TYPE_BYTES) and luck.random() < 0.5:
                field.options.packed = luck.random() < 0.5
        case 1 if proto3 or field.type != F.TYPE_ENUM:
            # proto2 drops entries whose value is a number without a name; here they have null for it.
            entry = message.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=luck.choice(KEYS))
            value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=field.type)
            if field.type_name:
                value.type_name = field.type_name
            field.label, field.type = F.LABEL_REPEATED, F.TYPE_MESSAGE
            field.type_name = f".p.{message.name}.{entry.name}"
        case 2 if proto3:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_f{number}")


def _add_oneof(message: DescriptorProto, names: list[str], luck: random.Random) -> None:
    """Adds a oneof, but not together with `optional` fields: their synthetic oneofs must come last."""
    if luck.random() < 0.5 and not any(field.proto3_optional for field in message.field):
        message.oneof_decl.add(name="choice")
        for number in luck.sample(range(40, 60), luck.randint(1, 4)):
            field = message.field.add(name=f"f{number}", number=number, label=F.LABEL_OPTIONAL, oneof_index=0)
            _choose_type(field, names, luck)


def _choose_type(field: FieldDescriptorProto, names: list[str], luck: random.Random) -> None:
    match luck.randint(0, 9):
        case 0 | 1:
            field.type, field.type_name = F.TYPE_MESSAGE, f".p.{luck.choice(names)}"
        case 2:
            field.type, field.type_name = F.TYPE_MESSAGE, luck.choice(KNOWN)
        case 3:
            field.type, field.type_name = F.TYPE_ENUM, ".p.E"
        case _:
            field.type = luck.choice(SCALARS)
