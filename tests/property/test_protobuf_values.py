"""Random messages of random Protobuf schemas, compared with Google's library: equal columns, and restored bytes.

`SOAK=1` for many more.
"""

import ctypes
import os
import random
import struct
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from google.protobuf.message import DecodeError, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.typed.random_protobuf_schemas import schema_of

from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.typed.arrow import from_arrow, to_arrow
from lakestream.data.typed.protobuf.codec import ProtobufCodec
from lakestream.errors import Rejected
from lakestream.schemas.protobuf.to_types import WRAPPERS
from lakestream.schemas.types import Kind, ListOf, MapOf, Primitive, Struct, Type, children

EXAMPLES: Final = 3000 if os.environ.get("SOAK") else 60
often = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
SEEDS: Final = st.integers(0, 2**32)

F: Final = FieldDescriptorProto
TEXT: Final = ["", "a", "ä", "Zürich", "\U0001f600", "x" * 200, "\0"]


# Messages


def message_of(kind: Any, shape: Struct, rng: random.Random) -> Any:
    message = kind()
    fill(message, shape, rng, 0)
    return message


def fill(message: Any, shape: Struct, rng: random.Random, depth: int) -> None:
    """Fills fields that are in the shape, with values that columns can represent."""
    for one in shape.fields:
        field = message.DESCRIPTOR.fields_by_number[one.number]
        if rng.random() < 0.4:
            continue
        match one.type:
            case MapOf(_, inner):
                _fill_map(getattr(message, field.name), field, inner, rng, depth)
            case ListOf(inner):
                for _ in range(rng.randint(0, 3)):
                    if field.message_type is None:
                        getattr(message, field.name).append(scalar(field, rng))
                    else:
                        _fill_inner(getattr(message, field.name).add(), inner, rng, depth)
            case inner if field.message_type is not None:
                getattr(message, field.name).SetInParent()
                _fill_inner(getattr(message, field.name), inner, rng, depth)
            case _:
                setattr(message, field.name, scalar(field, rng))


def _fill_map(entries: Any, field: FieldDescriptor, inner: Type, rng: random.Random, depth: int) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_number[number] for number in (1, 2))
    for _ in range(rng.randint(0, 3)):
        if value.message_type is None:
            entries[scalar(key, rng)] = scalar(value, rng)
        else:
            _fill_inner(entries[scalar(key, rng)], inner, rng, depth)


def _fill_inner(message: Any, inner: Type, rng: random.Random, depth: int) -> None:
    if isinstance(inner, Struct):
        if depth < 4:
            fill(message, inner, rng, depth + 1)
    elif message.DESCRIPTOR.full_name in WRAPPERS:
        if rng.random() < 0.7:
            message.value = scalar(message.DESCRIPTOR.fields_by_number[1], rng)
    elif message.DESCRIPTOR.name == "Timestamp":
        message.seconds, message.nanos = rng.randint(-(10**10), 10**11), rng.choice([0, 1000, 999_999_000])


def scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.type:
        case F.TYPE_BOOL:
            return rng.random() < 0.5
        case F.TYPE_STRING:
            return rng.choice(TEXT)
        case F.TYPE_BYTES:
            return rng.randbytes(rng.choice([0, 1, 3, 130]))
        case F.TYPE_ENUM:
            assert field.enum_type is not None
            return rng.choice(list(field.enum_type.values)).number
        case F.TYPE_FLOAT:
            return struct.unpack("<f", struct.pack("<f", rng.choice([0.0, -0.0, 1.5, rng.uniform(-1e30, 1e30)])))[0]
        case F.TYPE_DOUBLE:
            return rng.choice([0.0, -0.0, float("inf"), rng.gauss(0, 1e100)])
        case F.TYPE_UINT32 | F.TYPE_FIXED32:
            return rng.choice([0, 1, 127, 128, 2**32 - 1])
        case F.TYPE_UINT64 | F.TYPE_FIXED64:
            return rng.choice([0, 1, 2**63, 2**64 - 1])
        case F.TYPE_INT32 | F.TYPE_SINT32 | F.TYPE_SFIXED32:
            return rng.choice([0, -1, 300, -(2**31), 2**31 - 1])
        case _:
            return rng.choice([0, -1, 1 << 40, -(2**63), 2**63 - 1])


# Expected columns


def row_of(message: Any, shape: Struct) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for one in shape.fields:
        field = message.DESCRIPTOR.fields_by_number[one.number]
        value = getattr(message, field.name)
        if isinstance(one.type, MapOf):
            inner, kind = one.type.value, field.message_type.fields_by_number[2]
            row[one.name] = {key: expected_value(value[key], kind, inner) for key in sorted(value)}
        elif isinstance(one.type, ListOf):
            row[one.name] = [expected_value(item, field, one.type.element) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            row[one.name] = None
        else:
            row[one.name] = expected_value(value, field, one.type)
    return row


def expected_value(value: Any, field: FieldDescriptor, kind: Type) -> Any:
    if isinstance(kind, Struct):
        return row_of(value, kind)
    assert isinstance(kind, Primitive)
    if field.enum_type is not None:
        named = [one.name for one in field.enum_type.values if one.number == value]
        return named[0] if named else None
    if field.message_type is not None:
        return one_value(value)
    # Strings of proto2 may be invalid UTF-8; Python returns them as bytes.
    return None if field.type == F.TYPE_STRING and isinstance(value, bytes) else value


def one_value(message: Any) -> Any:
    match message.DESCRIPTOR.full_name:
        case "google.protobuf.Empty":
            return True
        case "google.protobuf.Timestamp":
            fits = -62_135_596_800 <= message.seconds <= 253_402_300_799 and 0 <= message.nanos < 10**9
            return message.seconds * 10**6 + message.nanos // 1000 if fits else None
        case _:
            return message.value


def plain(value: Any, kind: Type) -> Any:
    """Converts a value of Arrow to the form of the expected value."""
    match kind:
        case _ if value is None:
            return None
        case Struct(fields):
            return {one.name: plain(value[one.name], one.type) for one in fields}
        case ListOf(element):
            return [plain(item, element) for item in value]
        case MapOf(key, inner):
            found = {plain(name, key): plain(item, inner) for name, item in value}
            return {name: found[name] for name in sorted(found)}
        case Primitive(Kind.DECIMAL):
            return int(value)
        case _:
            return value


def rows(array: Any, shape: Struct) -> list[Any]:
    """Returns the rows with times as numbers, because Python's times have a smaller range."""
    return [plain(row, shape) for row in array.cast(_as_numbers(array.type)).to_pylist()]


def _as_numbers(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct(
            [pa.field(kind.field(at).name, _as_numbers(kind.field(at).type)) for at in range(kind.num_fields)]
        )
    if pa.types.is_map(kind):
        return pa.map_(_as_numbers(kind.key_type), _as_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_as_numbers(kind.value_type))
    return kind


def bytes_of(located: ByteSpans) -> list[bytes | None]:
    pairs = zip(located.address.tolist(), located.size.tolist(), strict=True)
    return [None if size < 0 else ctypes.string_at(address, size) for address, size in pairs]


def codec_and_class(rng: random.Random) -> tuple[ProtobufCodec, Any] | None:
    schema = schema_of(rng)
    try:
        return ProtobufCodec(schema), message_factory.GetMessageClass(schema.descriptor)
    except Rejected:
        return None  # the message contains only itself: no columns


def expect(codec: ProtobufCodec, kind: type[Message], values: list[bytes]) -> list[bytes | None]:
    """Asserts that each value is decoded or rejected as by Google's library. Returns the encoded values."""
    decoded = codec.decode(ByteSpans.of(pa.array(values, pa.binary())))
    array = to_arrow(decoded.buffers)
    array.validate(full=True)
    for value, problem, row in zip(values, decoded.problems.tolist(), rows(array, codec.shape), strict=True):
        try:
            message = kind.FromString(value)
        except DecodeError:
            # Fields outside of the shape are not parsed.
            assert problem or _is_partial(kind.DESCRIPTOR, codec.shape), value.hex()
            assert not problem or codec.reason(problem)
            assert (row is None) == (problem != 0)
        else:
            if problem and codec.reason(problem).endswith(".key: the string is not UTF-8"):
                continue  # proto2: a map key must be present
            assert not problem, (codec.reason(problem), value.hex())
            expected = repr(row_of(message, codec.shape))
            size = message.ByteSize()
            message.DiscardUnknownFields()
            # Google's C library drops a map entry with an unknown field; other libraries keep it.
            assert repr(row) == expected or (message.ByteSize() != size and _has_maps(codec.shape))
    again = bytes_of(codec.encode(from_arrow(array, codec.layout).buffers))
    if not _is_partial(kind.DESCRIPTOR, codec.shape):
        assert again == bytes_of(codec.encode(decoded.buffers))
    return again


def _is_partial(message: Any, shape: Struct) -> bool:
    if len(shape.fields) < len(message.fields):
        return True
    for one in shape.fields:
        assert one.number is not None
        field, inner = message.fields_by_number[one.number], one.type
        if field.message_type is not None and isinstance(inner, MapOf):
            field, inner = field.message_type.fields_by_number[2], inner.value
        inner = inner.element if isinstance(inner, ListOf) else inner
        if field.message_type is not None and isinstance(inner, Struct) and _is_partial(field.message_type, inner):
            return True
    return False


def _has_maps(kind: Type) -> bool:
    return isinstance(kind, MapOf) or any(_has_maps(inner) for inner in children(kind))


@often
@given(SEEDS)
def test_messages_have_the_expected_columns_and_are_restored(seed: int) -> None:
    rng = random.Random(seed)
    made = codec_and_class(rng)
    if made is None:
        return
    codec, kind = made
    values = [message_of(kind, codec.shape, rng).SerializeToString() for _ in range(8)]
    assert expect(codec, kind, values) == values


@often
@given(SEEDS)
def test_messages_in_parts_are_merged(seed: int) -> None:
    rng = random.Random(seed)
    made = codec_and_class(rng)
    if made is None:
        return
    codec, kind = made
    pieces = [message_of(kind, codec.shape, rng).SerializeToString() for _ in range(8)]
    values = [b"".join(rng.choices(pieces, k=rng.randint(1, 3))) for _ in range(8)]
    expect(codec, kind, values)


@often
@given(SEEDS)
def test_damaged_bytes_are_decoded_or_rejected_as_by_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    made = codec_and_class(rng)
    if made is None:
        return
    codec, kind = made
    values = []
    for _ in range(16):
        value = bytearray(message_of(kind, codec.shape, rng).SerializeToString())
        for _ in range(rng.randint(0, 3)):
            place = rng.randint(0, len(value))
            match rng.randint(0, 3):
                case 0:
                    del value[place:]
                case 1:
                    value[place:place] = rng.randbytes(rng.randint(1, 4))
                case 2:
                    value[place : place + 1] = rng.choice([b"\xff" * 10, b"\x80" * 9 + b"\x01", b"\x00", b"\x7f"])
                case _ if place < len(value):
                    value[place] ^= 1 << rng.randint(0, 7)
        values.append(bytes(value))
    expect(codec, kind, values)
