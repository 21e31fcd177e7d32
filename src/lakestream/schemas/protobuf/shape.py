"""The columns of a message. What becomes of each type is the table in docs/types.md.

Left out, so that values which have it keep their bytes: a message inside itself, groups, messages without any field,
extensions.
"""

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from lakestream.errors import Rejected
from lakestream.schemas.protobuf.options import understood
from lakestream.schemas.shape import Field, Kind, ListOf, MapOf, Primitive, Struct, Type

FIELDS_MAX: Final = 5000
"""Of a table. Messages that have others twice, which have others twice, … would be endless."""
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
"""Messages that are one value in a table. Empty is true where it is set."""

_PRECISION_MAX: Final = 38


def shape_of(message: Descriptor) -> Struct:
    """Rejected: more than a table can have."""
    struct = _Walk().message(message, ())
    if struct is None:
        raise Rejected(f"the message {message.full_name} has no field that can be a column")
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
                raise Rejected(f"the message {above[0]} has more than {FIELDS_MAX} columns, with those of its messages")
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
        return one_value(field) or self.message(message_of(field), above)


def is_map(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.type == _F.TYPE_MESSAGE and message_of(field).GetOptions().map_entry


def entry_of(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor]:
    """Key and value of a map."""
    fields = message_of(field).fields_by_number
    return fields[1], fields[2]


def message_of(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None, "asked only for fields that are messages"
    return field.message_type


def one_value(field: FieldDescriptor) -> Primitive | None:
    """Of a field whose message is one value in a table; None: it is a struct."""
    message = message_of(field)
    name = message.full_name
    if name in WRAPPERS:
        return SCALARS[message.fields_by_number[1].type]
    if name == DECIMAL:
        return _decimal(field)
    return ONE_VALUE.get(name)


def _decimal(field: FieldDescriptor) -> Primitive | None:
    """Confluent's decimals have a scale each; a column has one. Where the field says which, in the way that Confluent's
    converters do (`[(confluent.field_meta).params = {key: "scale" value: "2"}]`), it is a decimal, else a struct."""
    said = _params(field)
    try:
        precision, scale = int(said.get("precision", _PRECISION_MAX)), int(said["scale"])
    except (KeyError, ValueError):
        return None
    if not 0 < precision <= _PRECISION_MAX or not 0 <= scale <= precision:
        return None
    return Primitive(Kind.DECIMAL, precision=precision, scale=scale)


def _params(field: FieldDescriptor) -> dict[str, str]:
    assert field.containing_type is not None, "fields of messages only"
    for extension, value in understood(field.GetOptions(), field.containing_type.file.pool).ListFields():
        if extension.is_extension and extension.full_name == "confluent.field_meta":
            said: Any = value
            return dict(said.params)
    return {}
