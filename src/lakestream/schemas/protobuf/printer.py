"""Prints a descriptor as .proto text in a fixed style, which the registry returns and compares.

Compiling the text gives the same descriptor. Comments are lost, and type names are fully qualified.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, text_encoding, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from lakestream.schemas.protobuf.to_types import with_extensions

_SCALARS: Final = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}
_NAMED: Final = (
    FieldDescriptorProto.TYPE_MESSAGE,
    FieldDescriptorProto.TYPE_ENUM,
    FieldDescriptorProto.TYPE_GROUP,
)
_REPEATED, _REQUIRED = FieldDescriptorProto.LABEL_REPEATED, FieldDescriptorProto.LABEL_REQUIRED
_FIELD_NUMBER_END: Final = 1 << 29
_ENUM_NUMBER_MAX: Final = (1 << 31) - 1


def text_of(file: FileDescriptorProto, pool: DescriptorPool) -> str:
    return "".join(line + "\n" for line in _Printer(file, pool).lines())


class _Printer:
    def __init__(self, file: FileDescriptorProto, pool: DescriptorPool) -> None:
        self._file = file
        self._pool = pool
        self._syntax = file.syntax or "proto2"

    def lines(self) -> Iterator[str]:
        file = self._file
        if self._syntax == "editions":
            yield f'edition = "{descriptor_pb2.Edition.Name(file.edition).removeprefix("EDITION_")}";'
        else:
            yield f'syntax = "{self._syntax}";'
        if file.package:
            yield f"package {file.package};"
        yield from self._imports()
        yield from (f"option {option};" for option in self._options(file.options))
        extended = {_last(field.type_name) for field in file.extension if _is_group(field)}
        for message in file.message_type:
            if message.name not in extended:
                yield from self._message(message, "message " + message.name, "")
        for enum in file.enum_type:
            yield from self._enum(enum, "")
        yield from self._extensions(file.extension, file.message_type, "")
        for service in file.service:
            yield from self._service(service)

    def _imports(self) -> Iterator[str]:
        public, weak = set(self._file.public_dependency), set(self._file.weak_dependency)
        for place, name in enumerate(self._file.dependency):
            how = "public " if place in public else "weak " if place in weak else ""
            yield f"import {how}{_quoted(name)};"
        yield from (f"import option {_quoted(name)};" for name in self._file.option_dependency)

    def _message(self, message: DescriptorProto, head: str, indent: str) -> Iterator[str]:
        inner = indent + "  "
        yield f"{indent}{_visible(message)}{head} {{"
        yield from (f"{inner}option {option};" for option in self._options(message.options))
        yield from self._reserved(message, inner)
        for enum in message.enum_type:
            yield from self._enum(enum, inner)
        yield from self._inside(message, inner)
        yield from self._extensions(message.extension, message.nested_type, inner)
        yield indent + "}"

    def _inside(self, message: DescriptorProto, indent: str) -> Iterator[str]:
        """Yields nested messages and fields. Maps and groups are both a message and a field. The order of nested
        messages is kept, because the message indexes of values depend on it."""
        extended = {_last(field.type_name) for field in message.extension if _is_group(field)}
        owners = {
            _last(field.type_name): field for field in message.field if _is_map(field, message) or _is_group(field)
        }
        left = list(message.field)
        for nested in message.nested_type:
            if nested.name in extended:
                continue
            if nested.name not in owners:
                yield from self._message(nested, "message " + nested.name, indent)
            elif owners[nested.name] in left:
                upto = left.index(owners[nested.name])
                ahead = any(_last(field.type_name) in owners for field in left[:upto])
                yield from self._fields(left[upto : upto + 1] if ahead else left[: upto + 1], left, message, indent)
        yield from self._fields(left[:], left, message, indent)

    def _reserved(self, message: DescriptorProto, indent: str) -> Iterator[str]:
        ranges = [_range(span.start, span.end - 1, _FIELD_NUMBER_END - 1) for span in message.reserved_range]
        yield from self._reservations(ranges, message.reserved_name, indent)
        for span in message.extension_range:
            options = self._bracketed(self._options(span.options))
            yield f"{indent}extensions {_range(span.start, span.end - 1, _FIELD_NUMBER_END - 1)}{options};"

    def _reservations(self, ranges: Sequence[str], names: Sequence[str], indent: str) -> Iterator[str]:
        if ranges:
            yield f"{indent}reserved {', '.join(ranges)};"
        if names:
            quoted = names if self._syntax == "editions" else map(_quoted, names)
            yield f"{indent}reserved {', '.join(quoted)};"

    def _fields(
        self,
        fields: Sequence[FieldDescriptorProto],
        left: list[FieldDescriptorProto],
        message: DescriptorProto,
        indent: str,
    ) -> Iterator[str]:
        """Yields the fields that are left. All members of a oneof are printed at the position of the first one."""
        for field in fields:
            if field not in left:
                continue
            if not field.HasField("oneof_index") or field.proto3_optional:
                left.remove(field)
                yield from self._field(field, message.nested_type, indent, labelled=True)
                continue
            oneof = message.oneof_decl[field.oneof_index]
            yield f"{indent}oneof {oneof.name} {{"
            yield from (f"{indent}  option {option};" for option in self._options(oneof.options))
            for member in message.field:
                if member.HasField("oneof_index") and member.oneof_index == field.oneof_index:
                    left.remove(member)
                    yield from self._field(member, message.nested_type, indent + "  ", labelled=False)
            yield indent + "}"

    def _field(
        self, field: FieldDescriptorProto, siblings: Iterable[DescriptorProto], indent: str, labelled: bool
    ) -> Iterator[str]:
        name = _last(field.type_name)
        own = next((nested for nested in siblings if nested.name == name), None)
        is_map = own is not None and own.options.map_entry and field.label == _REPEATED
        label = self._label(field) if labelled and not is_map else ""
        options = self._bracketed(self._field_options(field))
        if own is not None and is_map:
            key, value = own.field
            yield f"{indent}map<{_type(key)}, {_type(value)}> {field.name} = {field.number}{options};"
        elif own is not None and _is_group(field):
            yield from self._message(own, f"{label}group {own.name} = {field.number}{options}", indent)
        else:
            yield f"{indent}{label}{_type(field)} {field.name} = {field.number}{options};"

    def _label(self, field: FieldDescriptorProto) -> str:
        if field.label == _REPEATED:
            return "repeated "
        if field.label == _REQUIRED:
            return "required "
        return "optional " if self._syntax == "proto2" or field.proto3_optional else ""

    def _field_options(self, field: FieldDescriptorProto) -> Iterator[str]:
        if field.HasField("default_value"):
            yield f"default = {_default(field)}"
        if field.json_name and field.json_name != json_name(field.name):
            yield f"json_name = {_quoted(field.json_name)}"
        yield from self._options(field.options)

    def _enum(self, enum: EnumDescriptorProto, indent: str) -> Iterator[str]:
        inner = indent + "  "
        yield f"{indent}{_visible(enum)}enum {enum.name} {{"
        yield from (f"{inner}option {option};" for option in self._options(enum.options))
        ranges = [_range(span.start, span.end, _ENUM_NUMBER_MAX) for span in enum.reserved_range]
        yield from self._reservations(ranges, enum.reserved_name, inner)
        for value in enum.value:
            yield f"{inner}{value.name} = {value.number}{self._bracketed(self._options(value.options))};"
        yield indent + "}"

    def _extensions(
        self, fields: Iterable[FieldDescriptorProto], siblings: Sequence[DescriptorProto], indent: str
    ) -> Iterator[str]:
        for field in fields:
            yield f"{indent}extend {field.extendee} {{"
            yield from self._field(field, siblings, indent + "  ", labelled=True)
            yield indent + "}"

    def _service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from (f"  option {option};" for option in self._options(service.options))
        for method in service.method:
            request = ("stream " if method.client_streaming else "") + method.input_type
            response = ("stream " if method.server_streaming else "") + method.output_type
            yield f"  rpc {method.name} ({request}) returns ({response}) {{"
            yield from (f"    option {option};" for option in self._options(method.options))
            yield "  }"
        yield "}"

    def _options(self, options: Message) -> Iterator[str]:
        """Yields `name = value` of each option, including options declared by the schema or its references."""
        for field, value in with_extensions(options, self._pool).ListFields():
            if field.name == "map_entry":
                continue
            name = f"({field.full_name})" if field.is_extension else field.name
            for one in value if field.is_repeated else [value]:
                yield f"{name} = {_option_value(field, one)}"

    @staticmethod
    def _bracketed(options: Iterator[str]) -> str:
        joined = ", ".join(options)
        return f" [{joined}]" if joined else ""


def json_name(name: str) -> str:
    """Returns protoc's default JSON name of a field."""
    out, upper = [], False
    for letter in name:
        if letter == "_":
            upper = True
        else:
            out.append(letter.upper() if upper and letter.islower() else letter)
            upper = False
    return "".join(out)


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name if field.type in _NAMED else _SCALARS[field.type]


def _is_map(field: FieldDescriptorProto, message: DescriptorProto) -> bool:
    name = _last(field.type_name)
    return field.label == _REPEATED and any(
        nested.options.map_entry and nested.name == name for nested in message.nested_type
    )


def _is_group(field: FieldDescriptorProto) -> bool:
    return field.type == FieldDescriptorProto.TYPE_GROUP


def _visible(what: DescriptorProto | EnumDescriptorProto) -> str:
    """Returns `export` or `local` (edition 2024), or an empty string."""
    return (
        descriptor_pb2.SymbolVisibility.Name(what.visibility).removeprefix("VISIBILITY_").lower() + " "
        if (what.visibility)
        else ""
    )


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _range(first: int, last: int, most: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= most else last}"


def _quoted(text: str) -> str:
    return f'"{text_encoding.CEscape(text.encode(), as_utf8=False)}"'


def _default(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'  # already escaped in the descriptor
    return field.default_value


def _option_value(field: FieldDescriptor, value: Any) -> str:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return "{ " + text_format.MessageToString(value, as_one_line=True) + " }"
    if field.type == FieldDescriptor.TYPE_ENUM:
        named = field.enum_type.values_by_number.get(value) if field.enum_type else None
        return named.name if named else str(value)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return "true" if value else "false"
    if field.type == FieldDescriptor.TYPE_STRING:
        return _quoted(value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return f'"{text_encoding.CEscape(value, as_utf8=False)}"'
    return str(value)
