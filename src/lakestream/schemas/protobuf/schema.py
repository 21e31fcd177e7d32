"""A Protobuf schema that was read: what the registry and the tables ask it.

files.py finds the files it consists of, protoc.py compiles those that are text, this makes descriptors of them in a
pool of their own. Blocks for about 0.1 s where there is text, so not for an event loop; what was read is kept.
"""

import base64
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from lakestream.errors import Rejected
from lakestream.schemas.model import Schema, Source
from lakestream.schemas.protobuf import indexes
from lakestream.schemas.protobuf.compat import troubles
from lakestream.schemas.protobuf.files import Files
from lakestream.schemas.protobuf.known import KNOWN
from lakestream.schemas.protobuf.protoc import compiled
from lakestream.schemas.protobuf.shape import shape_of
from lakestream.schemas.protobuf.text import json_name, text_of
from lakestream.schemas.shape import Struct

_KEPT_MAX: Final = 256
_GOOGLE: Final = "google/protobuf/"


def read_protobuf(source: Source, message: tuple[int, ...] = ()) -> "ProtobufSchema":
    """`message`: which one of it the shape is of, as in the wire format; nothing: the first."""
    schema = _read(source)
    return ProtobufSchema(source, schema.file, schema.pool, message) if message else schema


@lru_cache(_KEPT_MAX)
def _read(source: Source) -> "ProtobufSchema":
    files = Files.of(source)
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
        """The fields of each message by number. Messages stay where they are: their places are part of values."""
        file = self._proto
        for message in file.message_type:
            _sort_fields(message)
        return text_of(file, self.pool)

    @cached_property
    def text(self) -> str:
        """As .proto text, in the order it was written, also if it came as a descriptor."""
        return text_of(self._proto, self.pool)

    @cached_property
    def serialized(self) -> str:
        """As the stock serializer of Python has it: base64 of a FileDescriptorProto (`format=serialized`)."""
        return base64.b64encode(self._proto.SerializeToString(deterministic=True)).decode()

    @cached_property
    def descriptor(self) -> Descriptor:
        """Of the message that the shape is of. Rejected: there is none."""
        first, *rest = indexes.whole(self.message)
        try:
            found: Descriptor = list(self.file.message_types_by_name.values())[first]
            for place in rest:
                found = found.nested_types[place]
        except IndexError:
            said = list(indexes.whole(self.message))
            raise Rejected(f"the Protobuf schema has no message {said}: it has {self._named()}") from None
        return found

    def shape(self) -> Struct:
        return shape_of(self.descriptor)

    def troubles_reading(self, older: Schema) -> list[str]:
        if not isinstance(older, ProtobufSchema):
            return [f"the other schema is {older.source.format.value}, this one is PROTOBUF"]
        return troubles(self.file, older.file)

    @property
    def _proto(self) -> FileDescriptorProto:
        file = FileDescriptorProto()
        self.file.CopyToProto(file)
        for message in file.message_type:
            _drop_usual_json_names(message)
        return file

    def _named(self) -> str:
        return ", ".join(self.file.message_types_by_name) or "none"


def _descriptors(files: Files) -> dict[str, FileDescriptorProto]:
    """Every file that may be needed. Where nothing is text, nothing is compiled."""
    found = {**files.descriptors}
    needed = [name for file in found.values() for name in file.dependency if name not in found]
    if files.main in files.texts:
        wanted = [files.main]
    else:
        wanted = [name for name in files.texts if name in needed]
        wanted += [name for name in needed if name in KNOWN and name not in files.texts]
    if wanted:
        texts = {**KNOWN, **files.texts}
        ready = [file for name, file in files.descriptors.items() if name != files.main]
        found |= {file.name: file for file in compiled(texts, ready, list(dict.fromkeys(wanted)))}
    return found


def _in_order(main: str, files: dict[str, FileDescriptorProto]) -> Iterator[FileDescriptorProto]:
    """What the main file needs, each behind what it needs itself, without recursion: an import may be a long chain."""
    done: set[str] = set()
    opened: set[str] = set()
    waiting = [main]
    while waiting:
        name = waiting[-1]
        file = files.get(name) or _google(name)
        if file is None:
            raise Rejected(f"the Protobuf schema imports {name!r}, which none of its references is named")
        missing = [needed for needed in file.dependency if needed not in done]
        if name in done or not missing:
            waiting.pop()
            if name not in done:
                done.add(name)
                yield file
            continue
        if name in opened:
            raise Rejected(f"the Protobuf schema imports {name!r} in a circle")
        opened.add(name)
        files[name] = file
        waiting += missing


def _google(name: str) -> FileDescriptorProto | None:
    """What comes with Protobuf itself."""
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


def _drop_usual_json_names(message: DescriptorProto) -> None:
    for field in (*message.field, *message.extension):
        if field.json_name == json_name(field.name):
            field.ClearField("json_name")
    for nested in message.nested_type:
        _drop_usual_json_names(nested)
