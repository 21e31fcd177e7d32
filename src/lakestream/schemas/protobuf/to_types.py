"""Converts a message to column types, as listed in docs/types.md.

Recursive messages, groups, messages without fields and extensions are omitted. Rows whose values contain them also
store the bytes.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from lakestream.errors import Rejected
from lakestream.schemas.types import Field, Kind, ListOf, MapOf, Primitive, Struct, Type


def with_extensions(options: Message, pool: DescriptorPool) -> Message:
    """Parses options again with the message type of the pool, which has the extensions declared by the schema."""
    try:
        kind = pool.FindMessageTypeByName(options.DESCRIPTOR.full_name)
    except KeyError:
        return options  # No file of the pool imports descriptor.proto, so none declares an option.
    return message_factory.GetMessageClass(kind).FromString(options.SerializeToString(deterministic=True))


FIELDS_MAX: Final = 5000
"""Limits the number of columns: nested messages that are used several times would multiply it."""
DEPTH_MAX: Final = 32

_F: Final = FieldDescriptor
_UINT64: Final = Primitive(Kind.DECIMAL, precision=20)

SCALARS: Final = {
    _F.TYPE_DOUBLE: Primitive(Kind.DOUBLE),
    _F.TYPE_FLOAT: Primitive(Kind.FLOAT),
    _F.TYPE_INT64: Primitive(Kind.LONG),
    _F.TYPE_SINT64: Primitive(Kind.LONG),
    _F.TYPE_SFIXED64: Primitive(Kind.LONG),
    _F.TYPE_UINT64: _UINT64,
    _F.TYPE_FIXED64: _UINT64,
    _F.TYPE_INT32: Primitive(Kind.INT),
    _F.TYPE_SINT32: Primitive(Kind.INT),
    _F.TYPE_SFIXED32: Primitive(Kind.INT),
    _F.TYPE_UINT32: Primitive(Kind.LONG),
    _F.TYPE_FIXED32: Primitive(Kind.LONG),
    _F.TYPE_BOOL: Primitive(Kind.BOOLEAN),
    _F.TYPE_STRING: Primitive(Kind.STRING),
    _F.TYPE_BYTES: Primitive(Kind.BINARY),
    _F.TYPE_ENUM: Primitive(Kind.STRING),
}

TIMESTAMP: Final = "google.protobuf.Timestamp"
EMPTY: Final = "google.protobuf.Empty"
DATE: Final = "google.type.Date"
TIME: Final = "google.type.TimeOfDay"
DECIMAL: Final = "confluent.type.Decimal"

WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
ONE_VALUE: Final = {
    TIMESTAMP: Primitive(Kind.TIMESTAMPTZ),
    EMPTY: Primitive(Kind.BOOLEAN),
    DATE: Primitive(Kind.DATE),
    TIME: Primitive(Kind.TIME),
}
"""Messages that become one column. A column of Empty is true if the field is set."""

_PRECISION_MAX: Final = 38


def shape_of(message: Descriptor) -> Struct:
    """Returns the fields that become columns. Rejected if there are none or too many."""
    struct = _Walk().message(message, ())
    if struct is None:
        raise Rejected(f"the message {message.full_name} has no field that can be stored in a column")
    return struct


class _Walk:
    def __init__(self) -> None:
        self._fields = 0

    def message(self, message: Descriptor, above: tuple[str, ...]) -> Struct | None:
        if message.full_name in above or len(above) == DEPTH_MAX:
            return None
        inside = (*above, message.full_name)
        fields = tuple(self._fields_of(message, inside))
        return Struct(fields) if fields else None

    def _fields_of(self, message: Descriptor, above: tuple[str, ...]) -> Iterator[Field]:
        for field in message.fields:
            self._fields += 1
            if self._fields > FIELDS_MAX:
                raise Rejected(f"the message {above[0]} has more than {FIELDS_MAX} columns, including nested messages")
            kind = self._type(field, above)
            if kind is not None:
                yield Field(field.name, kind, number=field.number)

    def _type(self, field: FieldDescriptor, above: tuple[str, ...]) -> Type | None:
        if is_map(field):
            key, value = entry_of(field)
            inner = self._single(value, above)
            return MapOf(SCALARS[key.type], inner) if inner is not None else None
        inner = self._single(field, above)
        return ListOf(inner) if inner is not None and field.is_repeated else inner

    def _single(self, field: FieldDescriptor, above: tuple[str, ...]) -> Type | None:
        if field.type == _F.TYPE_GROUP:
            return None
        if field.type != _F.TYPE_MESSAGE:
            return SCALARS[field.type]
        return single_column_type(field) or self.message(message_of(field), above)


def is_map(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.type == _F.TYPE_MESSAGE and message_of(field).GetOptions().map_entry


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Returns the key and value fields of a map."""
    fields = message_of(field).fields_by_number
    return fields[1], fields[2]


def message_of(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None, "the field is not a message"
    return field.message_type


def single_column_type(field: FieldDescriptor) -> Primitive | None:
    """Returns the type of a field whose message becomes one column, or None if it becomes a struct."""
    message = message_of(field)
    name = message.full_name
    if name in WRAPPERS:
        return SCALARS[message.fields_by_number[1].type]
    if name == DECIMAL:
        return _decimal(field)
    return ONE_VALUE.get(name)


def _decimal(field: FieldDescriptor) -> Primitive | None:
    """Returns the type of a Confluent decimal. Each value has its own scale, but a column has only one: without the
    option of Confluent's converters (`[(confluent.field_meta).params = {key: "scale" value: "2"}]`) it is a struct."""
    params = _params(field)
    try:
        precision, scale = int(params.get("precision", _PRECISION_MAX)), int(params["scale"])
    except (KeyError, ValueError):
        return None
    if not 0 < precision <= _PRECISION_MAX or not 0 <= scale <= precision:
        return None
    return Primitive(Kind.DECIMAL, precision=precision, scale=scale)


def _params(field: FieldDescriptor) -> dict[str, str]:
    assert field.containing_type is not None, "the field does not belong to a message"
    for extension, value in with_extensions(field.GetOptions(), field.containing_type.file.pool).ListFields():
        if extension.is_extension and extension.full_name == "confluent.field_meta":
            meta: Any = value
            return dict(meta.params)
    return {}
