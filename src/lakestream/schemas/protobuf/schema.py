"""A parsed Protobuf schema, as the registry and the tables use it.

imports.py lists the files of the schema, protoc.py compiles those that are text, and this module loads the descriptors
into a pool of their own. Compiling text blocks for about 0.1 s: do not call it in an event loop. Parsed schemas are
cached.
"""

import base64
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from lakestream.aio.cache import weighted_cache
from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.protobuf import message_indexes
from lakestream.schemas.protobuf.compatibility import find_incompatibilities
from lakestream.schemas.protobuf.imports import SourceFiles
from lakestream.schemas.protobuf.printer import json_name, text_of
from lakestream.schemas.protobuf.protoc import compile_files
from lakestream.schemas.protobuf.to_types import shape_of
from lakestream.schemas.protobuf.well_known_types import WELL_KNOWN_FILES
from lakestream.schemas.types import Struct

_KEPT_SIZE_MAX: Final = 4 * MiB
"""Characters of the cached schemas, plus 1,000 for each."""
_GOOGLE: Final = "google/protobuf/"


def read_protobuf(source: Source, message: tuple[int, ...] = ()) -> "ProtobufSchema":
    """Parses a schema. `message` are the indexes of the message that the shape is of; empty: the first message."""
    schema = _read(source)
    return ProtobufSchema(source, schema.file, schema.pool, message) if message else schema


@weighted_cache(_KEPT_SIZE_MAX, lambda source: 1_000 + source.size)
def _read(source: Source) -> "ProtobufSchema":
    files = SourceFiles.of(source)
    pool = DescriptorPool()
    for file in _in_order(files.main, _descriptors(files)):
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise Rejected(f"the Protobuf schema cannot be read: {str(error)[:500]}") from error
    return ProtobufSchema(source, pool.FindFileByName(files.main), pool)


@dataclass(frozen=True, eq=False)
class ProtobufSchema:
    source: Source
    file: FileDescriptor
    pool: DescriptorPool
    message: tuple[int, ...] = ()

    @cached_property
    def canonical(self) -> str:
        """The .proto text with the fields of each message sorted by number. The order of messages is kept, because the
        message indexes of values depend on it."""
        file = self._proto
        for message in file.message_type:
            _sort_fields(message)
        return text_of(file, self.pool)

    @cached_property
    def text(self) -> str:
        """The .proto text in the original order, also if the source is a descriptor."""
        return text_of(self._proto, self.pool)

    @cached_property
    def serialized(self) -> str:
        """A FileDescriptorProto in base64, as Confluent's serializer for Python registers it (`format=serialized`)."""
        return base64.b64encode(self._proto.SerializeToString(deterministic=True)).decode()

    @cached_property
    def descriptor(self) -> Descriptor:
        """The descriptor of the selected message. Rejected if the schema has no such message."""
        first, *rest = indexes = message_indexes.or_first(self.message)
        try:
            descriptor: Descriptor = list(self.file.message_types_by_name.values())[first]
            for index in rest:
                descriptor = descriptor.nested_types[index]
        except IndexError:
            names = ", ".join(self.file.message_types_by_name) or "none"
            raise Rejected(f"the Protobuf schema has no message {list(indexes)}: it has {names}") from None
        return descriptor

    def shape(self) -> Struct:
        return shape_of(self.descriptor)

    def incompatibilities_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, ProtobufSchema):
            return [f"the older schema is of type {older.source.format.value}, this one is PROTOBUF"]
        return find_incompatibilities(self.file, older.file)

    @property
    def _proto(self) -> FileDescriptorProto:
        file = FileDescriptorProto()
        self.file.CopyToProto(file)
        for message in file.message_type:
            _drop_default_json_names(message)
        return file


def _descriptors(files: SourceFiles) -> dict[str, FileDescriptorProto]:
    """Returns the descriptors of all files that may be imported. If no file is text, nothing is compiled."""
    descriptors = {**files.descriptors}
    missing = [name for file in descriptors.values() for name in file.dependency if name not in descriptors]
    if files.main in files.texts:
        names = [files.main]
    else:
        names = [name for name in files.texts if name in missing]
        names += [name for name in missing if name in WELL_KNOWN_FILES and name not in files.texts]
    if names:
        texts = {**WELL_KNOWN_FILES, **files.texts}
        references = [file for name, file in files.descriptors.items() if name != files.main]
        descriptors |= {file.name: file for file in compile_files(texts, references, list(dict.fromkeys(names)))}
    return descriptors


def _in_order(main: str, files: dict[str, FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    """Yields the main file and its imports, each after its own imports. Not recursive, because the chain of imports may
    be long."""
    done: set[str] = set()
    opened: set[str] = set()
    waiting = [main]
    while waiting:
        name = waiting[-1]
        file = files.get(name) or _google(name)
        if file is None:
            raise Rejected(f"the Protobuf schema imports {name!r}: register it as a reference of this name")
        missing = [dependency for dependency in file.dependency if dependency not in done]
        if name in done or not missing:
            waiting.pop()
            if name not in done:
                done.add(name)
                yield file
            continue
        if name in opened:
            raise Rejected(f"the Protobuf schema has a cyclic import of {name!r}")
        opened.add(name)
        files[name] = file
        waiting += missing


def _google(name: str) -> FileDescriptorProto | None:
    """Returns a file of the Protobuf library, or None if it has no file of this name."""
    if not name.startswith(_GOOGLE) or not name.endswith(".proto"):
        return None
    stem = name.removeprefix(_GOOGLE).removesuffix(".proto")
    if not stem.isidentifier():
        return None
    try:
        module = importlib.import_module(f"google.protobuf.{stem}_pb2")
    except ImportError:
        return None
    file = FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def _sort_fields(message: DescriptorProto) -> None:
    message.field.sort(key=lambda field: field.number)
    for nested in message.nested_type:
        _sort_fields(nested)


def _drop_default_json_names(message: DescriptorProto) -> None:
    for field in (*message.field, *message.extension):
        if field.json_name == json_name(field.name):
            field.ClearField("json_name")
    for nested in message.nested_type:
        _drop_default_json_names(nested)
