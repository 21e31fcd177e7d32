"""Incompatibilities of two Protobuf schemas, by the rules that Confluent documents.

Fields are identified by their numbers, messages by their names without the package. Compatible changes: adding fields
and messages, removing and renaming fields, changing the package, any change of an enum, moving one field into a new
oneof or out of a oneof, changing a type within one of the groups below, and adding or removing `repeated` for strings,
bytes and messages.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, OneofDescriptor

from lakestream.schemas.protobuf.to_types import entry_of, is_map

INCOMPATIBILITIES_MAX: Final = 100

_F: Final = FieldDescriptor
_INTEGER: Final = "varint"

_WIRE: Final = {
    **dict.fromkeys(
        (_F.TYPE_INT32, _F.TYPE_INT64, _F.TYPE_UINT32, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM), _INTEGER
    ),
    **dict.fromkeys((_F.TYPE_SINT32, _F.TYPE_SINT64), "zigzag"),
    **dict.fromkeys((_F.TYPE_FIXED32, _F.TYPE_SFIXED32), "fixed32"),
    **dict.fromkeys((_F.TYPE_FIXED64, _F.TYPE_SFIXED64), "fixed64"),
    **dict.fromkeys((_F.TYPE_STRING, _F.TYPE_BYTES), "bytes"),
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_MESSAGE: "message",
    _F.TYPE_GROUP: "group",
}
"""Types with the same group can read each other's values."""
_LABEL_MAY_CHANGE: Final = ("bytes", "message")

_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(_F).items() if name.startswith("TYPE_")
}


def find_incompatibilities(newer: FileDescriptor, older: FileDescriptor) -> list[str]:
    """Returns each incompatibility once, in order, and at most INCOMPATIBILITIES_MAX of them."""
    found: dict[str, None] = {}
    for message in _Comparison(newer, older).incompatibilities():
        found[message] = None
        if len(found) == INCOMPATIBILITIES_MAX:
            break
    return list(found)


class _Comparison:
    def __init__(self, newer: FileDescriptor, older: FileDescriptor) -> None:
        self._newer, self._older = newer, older
        self._compared: set[tuple[str, str]] = set()
        self._waiting: list[tuple[Descriptor, Descriptor]] = []

    def incompatibilities(self) -> Iterator[str]:
        newer_messages = _messages(self._newer)
        for name, message in _messages(self._older).items():
            if name in newer_messages:
                self._waiting.append((newer_messages[name], message))
            else:
                yield f"the message {name} was removed"
        while self._waiting:
            newer, older = self._waiting.pop()
            if (newer.full_name, older.full_name) not in self._compared:
                self._compared.add((newer.full_name, older.full_name))
                yield from self._message(newer, older)

    def _message(self, newer: Descriptor, older: Descriptor) -> Iterator[str]:
        now, before = newer.fields_by_number, older.fields_by_number
        for number, field in before.items():
            if number in now:
                yield from self._field(now[number], field)
            elif field.is_required:
                yield f"the required field {_name_of(field)} was removed"
        for number, field in now.items():
            if number not in before and field.is_required:
                yield f"the required field {_name_of(field)} was added"
        yield from _oneofs(newer, older)

    def _field(self, newer: FieldDescriptor, older: FieldDescriptor) -> Iterator[str]:
        if is_map(newer) and is_map(older):
            for now, before in zip(entry_of(newer), entry_of(older), strict=True):
                yield from self._type(now, before, _name_of(newer))
            return
        if is_map(newer) or is_map(older):
            yield f"the field {_name_of(newer)} changed from {_kind(older)} to {_kind(newer)}"
            return
        yield from self._type(newer, older, _name_of(newer))
        wire = _WIRE[newer.type]
        if newer.is_repeated != older.is_repeated and not (wire == _WIRE[older.type] and wire in _LABEL_MAY_CHANGE):
            yield f"the field {_name_of(newer)} {'became' if newer.is_repeated else 'is no longer'} repeated"
        if newer.is_required and not older.is_required:
            yield f"the field {_name_of(newer)} became required"

    def _type(self, newer: FieldDescriptor, older: FieldDescriptor, name: str) -> Iterator[str]:
        if _WIRE[newer.type] != _WIRE[older.type]:
            yield f"the field {name} changed from {_kind(older)} to {_kind(newer)}"
        elif newer.message_type is not None and older.message_type is not None:
            now, before = newer.message_type, older.message_type
            if _name(now) != _name(before):
                yield f"the field {name} changed from {_kind(older)} to {_kind(newer)}"
            else:
                self._waiting.append((now, before))


def _oneofs(newer: Descriptor, older: Descriptor) -> Iterator[str]:
    """A value has at most one field of a oneof. Fields may be combined in a oneof only if they were combined before:
    if both could be set, one would be lost. A field must not be removed from a oneof either: a reader without it would
    conclude that no field is set."""
    oneof_of = {field.number: oneof.name for oneof in _real_oneofs(older) for field in oneof.fields}
    for oneof in _real_oneofs(newer):
        existing = [field for field in oneof.fields if field.number in older.fields_by_number]
        if len({oneof_of.get(field.number, field.number) for field in existing}) < 2:
            continue
        if oneof.name in oneof_of.values():
            for field in existing:
                if oneof_of.get(field.number) != oneof.name:
                    yield f"the field {_name_of(field)} was moved into the existing oneof {oneof.name}"
        else:
            names = ", ".join(field.name for field in existing)
            yield f"the fields {names} of {newer.full_name} were moved into one oneof, {oneof.name}"
    for oneof in _real_oneofs(older):
        removed = [field for field in oneof.fields if field.number not in newer.fields_by_number]
        if len(removed) < len(oneof.fields):
            yield from (f"the field {_name_of(field)} was removed from the oneof {oneof.name}" for field in removed)


def _real_oneofs(message: Descriptor) -> Iterator[OneofDescriptor]:
    """Excludes `optional` fields of proto3, which descriptors represent as a oneof with one field."""
    return (oneof for oneof in message.oneofs if not (len(oneof.fields) == 1 and _is_optional(oneof.fields[0])))


def _is_optional(field: FieldDescriptor) -> bool:
    return field.containing_oneof is not None and field.containing_oneof.name == f"_{field.name}"


def _messages(file: FileDescriptor) -> dict[str, Descriptor]:
    """Returns all messages of a file, including nested ones, by their names without the package."""
    found: dict[str, Descriptor] = {}
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        if not message.GetOptions().map_entry:
            found[_below(message.full_name, file.package)] = message
            waiting += message.nested_types
    return found


def _name(message: Descriptor) -> str:
    """Returns the name without the package. A message may move to another package or file: values do not contain it."""
    return _below(message.full_name, message.file.package)


def _below(name: str, package: str) -> str:
    return name[len(package) + 1 :] if package else name


def _name_of(field: FieldDescriptor) -> str:
    return f"{field.full_name} (number {field.number})"


def _kind(field: FieldDescriptor) -> str:
    if is_map(field):
        return "a map"
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return str(field.enum_type.full_name)
    return _NAMES[field.type]
