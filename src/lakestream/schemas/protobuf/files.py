"""The files that a schema consists of: itself and its references, each as text or as a descriptor.

First step of reading. The stock serializer of Python registers base64 of a serialized FileDescriptorProto, others text;
references may be either.
"""

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message import DecodeError, Message

from lakestream.errors import Rejected
from lakestream.schemas.model import Reference, Source

BYTES_MAX: Final = 4 << 20
"""Of all the text of a schema and its references."""
FILES_MAX: Final = 1000
DEPTH_MAX: Final = 100
"""Of references of references."""
_NAME_MAX: Final = 255

_NO_KEYS: Final = [
    FieldDescriptorProto.Type.Value(f"TYPE_{name}") for name in ("FLOAT", "DOUBLE", "BYTES", "ENUM", "MESSAGE", "GROUP")
]

_NAME: Final = re.compile(r"(?!\.)[\w.+@=,~ -]+(?:/(?!\.\.?(?:/|$))[\w.+@=,~ -]+)*")


@dataclass(frozen=True, slots=True)
class Files:
    main: str
    texts: dict[str, str] = field(default_factory=dict)
    descriptors: dict[str, FileDescriptorProto] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> "Files":
        """Rejected: too much, or under names that are none."""
        references = _all_of(source)
        size = len(source.text) + sum(len(text) for text in references.values())
        if size > BYTES_MAX or len(references) > FILES_MAX:
            raise Rejected(
                f"a Protobuf schema with its references may have {BYTES_MAX >> 20} MiB in {FILES_MAX} files:"
                f" this one has {size:,} bytes in {len(references) + 1}"
            )
        files = cls(_unused("schema.proto", references))
        files._add(files.main, source.text)
        for name, text in references.items():
            files._add(name, text)
        return files

    def _add(self, name: str, text: str) -> None:
        if not text.strip():
            raise Rejected("the Protobuf schema is empty" if name == self.main else f"the reference {name} is empty")
        descriptor = _descriptor(text)
        if descriptor is None:
            self.texts[name] = text
        else:
            descriptor.name = name
            descriptor.ClearField("source_code_info")
            self.descriptors[name] = descriptor


def _all_of(source: Source) -> dict[str, str]:
    found: dict[str, str] = {}
    for reference in _walk(source.references, 0):
        if not _NAME.fullmatch(reference.name) or len(reference.name) > _NAME_MAX:
            raise Rejected(
                f"the reference {reference.name[:_NAME_MAX]!r} has no name that a .proto file can be imported by"
            )
        if found.setdefault(reference.name, reference.text) != reference.text:
            raise Rejected(f"two different schemas are referenced as {reference.name}")
    return found


def _walk(references: tuple[Reference, ...], depth: int) -> Iterator[Reference]:
    if depth == DEPTH_MAX:
        raise Rejected(f"references are nested deeper than {DEPTH_MAX}")
    for reference in references:
        yield reference
        yield from _walk(reference.references, depth + 1)


def _unused(name: str, used: dict[str, str]) -> str:
    while name in used:
        name = "_" + name
    return name


def _descriptor(text: str) -> FileDescriptorProto | None:
    """None: it is text of .proto, which always has characters that base64 has not."""
    try:
        raw = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    try:
        descriptor = FileDescriptorProto.FromString(raw)
    except DecodeError as error:
        raise Rejected(f"the Protobuf schema is base64, but not of a FileDescriptorProto: {error}") from error
    if not _is_text(descriptor):
        raise Rejected("the Protobuf schema is base64 of a FileDescriptorProto with names that are not UTF-8")
    for message in descriptor.message_type:
        _check_maps(message)
    return descriptor


def _check_maps(message: DescriptorProto) -> None:
    """protoc makes no others, and the library that takes descriptors does not look."""
    if message.options.map_entry:
        halves = [(half.number, half.label) for half in message.field]
        optional = FieldDescriptorProto.LABEL_OPTIONAL
        if halves != [(1, optional), (2, optional)] or message.field[0].type in _NO_KEYS:
            raise Rejected(f"the Protobuf schema has {message.name} for the entries of a map, which cannot be any")
    for nested in message.nested_type:
        _check_maps(nested)


def _is_text(message: Message) -> bool:
    """Protobuf itself does not look, and then gives bytes where text should be."""
    for kind, value in message.ListFields():
        values = value if kind.is_repeated else [value]
        if kind.type == FieldDescriptor.TYPE_STRING and any(isinstance(one, bytes) for one in values):
            return False
        if kind.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, values)):
            return False
    return True
