"""The files of a schema: the schema itself and its references, each as text or as a descriptor.

First step of parsing. Confluent's serializer for Python registers a serialized FileDescriptorProto in base64, the
others register text. References may be either.
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
"""Of the text of a schema and its references."""
FILES_MAX: Final = 1000
DEPTH_MAX: Final = 100
"""Levels of references of references."""
_NAME_MAX: Final = 255

_NO_KEYS: Final = [
    FieldDescriptorProto.Type.Value(f"TYPE_{name}") for name in ("FLOAT", "DOUBLE", "BYTES", "ENUM", "MESSAGE", "GROUP")
]

_NAME: Final = re.compile(r"(?!\.)[\w.+@=,~ -]+(?:/(?!\.\.?(?:/|$))[\w.+@=,~ -]+)*")


@dataclass(frozen=True, slots=True)
class SourceFiles:
    main: str
    texts: dict[str, str] = field(default_factory=dict)
    descriptors: dict[str, FileDescriptorProto] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> "SourceFiles":
        """Returns the files of a schema. Rejected if they are too large or have invalid names."""
        references = _all_of(source)
        size = len(source.text) + sum(len(text) for text in references.values())
        if size > BYTES_MAX or len(references) > FILES_MAX:
            raise Rejected(
                f"the Protobuf schema and its references have {size:,} bytes in {len(references) + 1} files:"
                f" at most {BYTES_MAX >> 20} MiB in {FILES_MAX} files are allowed"
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
                f"the reference {reference.name[:_NAME_MAX]!r} has no valid name: use the path in the import statement"
            )
        if found.setdefault(reference.name, reference.text) != reference.text:
            raise Rejected(f"two references have the name {reference.name}, but different schemas")
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
    """Returns None for .proto text, which always contains characters that base64 does not have."""
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
    """Checks map entries. protoc always creates valid ones, and the library that loads descriptors does not check
    them."""
    if message.options.map_entry:
        halves = [(half.number, half.label) for half in message.field]
        optional = FieldDescriptorProto.LABEL_OPTIONAL
        if halves != [(1, optional), (2, optional)] or message.field[0].type in _NO_KEYS:
            raise Rejected(
                f"the Protobuf schema has the invalid map entry {message.name}: register the output of protoc"
            )
    for nested in message.nested_type:
        _check_maps(nested)


def _is_text(message: Message) -> bool:
    """Returns whether all strings are UTF-8. The Protobuf library does not check this, and returns bytes for others."""
    for kind, value in message.ListFields():
        values = value if kind.is_repeated else [value]
        if kind.type == FieldDescriptor.TYPE_STRING and any(isinstance(one, bytes) for one in values):
            return False
        if kind.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, values)):
            return False
    return True
