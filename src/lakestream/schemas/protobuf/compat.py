"""What keeps one Protobuf schema from reading values of another. The rules are those that Confluent documents.

Fields are known by their numbers and messages by their names below the package. Fine: fields and messages added, fields
removed, renames, new packages, anything in an enumeration, one field moved into a new oneof or out of one, types within
one of the groups below, and text, bytes or messages that begin or cease to be repeated.
"""

from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, OneofDescriptor

from lakestream.schemas.protobuf.shape import entry_of, is_map

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
"""Types that read each other's values: those with the same word."""
_LABEL_IS_FREE: Final = ("bytes", "message")

_NAMES: Final = {
    number: name.removeprefix("TYPE_").lower() for name, number in vars(_F).items() if name.startswith("TYPE_")
}


def troubles(newer: FileDescriptor, older: FileDescriptor) -> list[str]:
    return list(dict.fromkeys(_Comparison(newer, older).found()))


class _Comparison:
    def __init__(self, newer: FileDescriptor, older: FileDescriptor) -> None:
        self._newer, self._older = newer, older
        self._compared: set[tuple[str, str]] = set()
        self._waiting: list[tuple[Descriptor, Descriptor]] = []

    def found(self) -> Iterator[str]:
        now = _messages(self._newer)
        for name, message in _messages(self._older).items():
            if name in now:
                self._waiting.append((now[name], message))
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
                yield f"the required field {_said(field)} was removed"
        for number, field in now.items():
            if number not in before and field.is_required:
                yield f"the required field {_said(field)} was added"
        yield from _oneofs(newer, older)

    def _field(self, newer: FieldDescriptor, older: FieldDescriptor) -> Iterator[str]:
        if is_map(newer) and is_map(older):
            for now, before in zip(entry_of(newer), entry_of(older), strict=True):
                yield from self._type(now, before, _said(newer))
            return
        if is_map(newer) or is_map(older):
            yield f"the field {_said(newer)} changed from {_kind(older)} to {_kind(newer)}"
            return
        yield from self._type(newer, older, _said(newer))
        wire = _WIRE[newer.type]
        if newer.is_repeated != older.is_repeated and not (wire == _WIRE[older.type] and wire in _LABEL_IS_FREE):
            yield f"the field {_said(newer)} {'became' if newer.is_repeated else 'is no longer'} repeated"
        if newer.is_required and not older.is_required:
            yield f"the field {_said(newer)} became required"

    def _type(self, newer: FieldDescriptor, older: FieldDescriptor, said: str) -> Iterator[str]:
        if _WIRE[newer.type] != _WIRE[older.type]:
            yield f"the field {said} changed from {_kind(older)} to {_kind(newer)}"
        elif newer.message_type is not None and older.message_type is not None:
            now, before = newer.message_type, older.message_type
            if _name(now) != _name(before):
                yield f"the field {said} changed from {_kind(older)} to {_kind(newer)}"
            else:
                self._waiting.append((now, before))


def _oneofs(newer: Descriptor, older: Descriptor) -> Iterator[str]:
    """Values have at most one field of a oneof. So fields may be together in one only if they were so before: of two
    that could both be set, one would be lost. And who reads that none is set must not miss one that is not known."""
    homes = {field.number: oneof.name for oneof in _real_oneofs(older) for field in oneof.fields}
    for oneof in _real_oneofs(newer):
        known = [field for field in oneof.fields if field.number in older.fields_by_number]
        if len({homes.get(field.number, field.number) for field in known}) < 2:
            continue
        if oneof.name in homes.values():
            for field in known:
                if homes.get(field.number) != oneof.name:
                    yield f"the field {_said(field)} was moved into the oneof {oneof.name}, which was there before"
        else:
            names = ", ".join(field.name for field in known)
            yield f"the fields {names} of {newer.full_name} were moved into one oneof, {oneof.name}"
    for oneof in _real_oneofs(older):
        gone = [field for field in oneof.fields if field.number not in newer.fields_by_number]
        if len(gone) < len(oneof.fields):
            yield from (f"the field {_said(field)} was removed from the oneof {oneof.name}" for field in gone)


def _real_oneofs(message: Descriptor) -> Iterator[OneofDescriptor]:
    """`optional` in proto3 is, to descriptors, a oneof of one field."""
    return (oneof for oneof in message.oneofs if not (len(oneof.fields) == 1 and _is_optional(oneof.fields[0])))


def _is_optional(field: FieldDescriptor) -> bool:
    return field.containing_oneof is not None and field.containing_oneof.name == f"_{field.name}"


def _messages(file: FileDescriptor) -> dict[str, Descriptor]:
    """All of a file, those inside others too, by their names below the package."""
    found: dict[str, Descriptor] = {}
    waiting = list(file.message_types_by_name.values())
    while waiting:
        message = waiting.pop()
        if not message.GetOptions().map_entry:
            found[_below(message.full_name, file.package)] = message
            waiting += message.nested_types
    return found


def _name(message: Descriptor) -> str:
    """A message may move to another package, or file: values do not say where it is from."""
    return _below(message.full_name, message.file.package)


def _below(name: str, package: str) -> str:
    return name[len(package) + 1 :] if package else name


def _said(field: FieldDescriptor) -> str:
    return f"{field.full_name} (number {field.number})"


def _kind(field: FieldDescriptor) -> str:
    if is_map(field):
        return "a map"
    if field.message_type is not None:
        return str(field.message_type.full_name)
    if field.enum_type is not None:
        return str(field.enum_type.full_name)
    return _NAMES[field.type]
