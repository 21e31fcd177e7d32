"""Random Protobuf schemas: their text is equivalent, and damaged ones are rejected or usable. `SOAK=1` runs more."""

import base64
import os
import random
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.typed.random_protobuf_schemas import schema_of

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.protobuf.codec import ProtobufCodec
from lakestream.errors import Rejected
from lakestream.schemas.model import Format, Source
from lakestream.schemas.protobuf.schema import read_protobuf

SOAK: Final = bool(os.environ.get("SOAK"))
SEEDS: Final = st.integers(0, 2**32)
STRANGE: Final = ["", ".p.M0", ".p.E", "x" * 300, "a b", "\u00e4", ".p.M0.F1Entry", "proto3", "editions", "M0"]


def damage(message: Any, rng: random.Random) -> None:
    """Removes, duplicates or changes one field of a descriptor."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    if field.is_repeated and field.message_type is None:
        return
    if field.is_repeated:
        one = rng.randrange(len(value))
        match rng.randint(0, 7):
            case 0:
                del value[one]
            case 1:
                value.add().CopyFrom(value[one])
            case _:
                damage(value[one], rng)
    elif field.message_type is not None:
        damage(value, rng)
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    elif isinstance(value, str):
        setattr(message, field.name, rng.choice(STRANGE))
    elif field.enum_type is not None:
        setattr(message, field.name, rng.choice(list(field.enum_type.values)).number)
    else:
        setattr(
            message, field.name, rng.choice([0, 1, 2, 5, 19_000, 2**29]) if not isinstance(value, bool) else not value
        )


@settings(max_examples=5000 if SOAK else 100, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_damaged_descriptors_are_rejected_or_usable(seed: int) -> None:
    rng = random.Random(seed)
    raw = base64.b64decode(schema_of(rng).source.text)
    if rng.random() < 0.5:
        file = FileDescriptorProto.FromString(raw)
        for _ in range(rng.randint(1, 3)):
            damage(file, rng)
        raw = file.SerializeToString()
    else:
        edited = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            edited[rng.randrange(len(edited))] ^= 1 << rng.randint(0, 7)
        raw = bytes(edited)
    try:
        schema = read_protobuf(Source(Format.PROTOBUF, base64.b64encode(raw).decode()))
        assert schema.text
        assert schema.canonical
        assert schema.incompatibilities_reading(schema) == []
        codec = ProtobufCodec(schema)
    except Rejected:
        return
    codec.encode(codec.decode(ByteSpans.of(pa.array([b"", rng.randbytes(20)], pa.binary()))).buffers)


@settings(max_examples=200 if SOAK else 3, suppress_health_check=list(HealthCheck))
@given(SEEDS)
def test_schema_parsed_from_its_text_is_equal(seed: int) -> None:
    schema = schema_of(random.Random(seed))
    again = read_protobuf(Source(Format.PROTOBUF, schema.text))
    assert again.serialized == schema.serialized
    canonical = read_protobuf(Source(Format.PROTOBUF, schema.canonical))
    assert canonical.canonical == canonical.text == schema.canonical
