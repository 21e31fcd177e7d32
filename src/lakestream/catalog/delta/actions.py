"""The actions of the Delta protocol: the lines of a commit in the log. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from lakestream.catalog.table_metadata.json_model import Id, SmallId
from lakestream.errors import Corrupt

PROVIDER: Final = "parquet"


class _CamelStruct(msgspec.Struct, frozen=True, rename="camel"): ...


class Protocol(_CamelStruct, frozen=True, omit_defaults=True):
    min_reader_version: SmallId = msgspec.field()
    min_writer_version: SmallId = msgspec.field()
    reader_features: tuple[str, ...] | None = None
    writer_features: tuple[str, ...] | None = None

    @property
    def features(self) -> frozenset[str]:
        return frozenset((*(self.reader_features or ()), *(self.writer_features or ())))


class FileFormat(_CamelStruct, frozen=True):
    provider: str = PROVIDER
    options: dict[str, str] = {}


class MetaData(_CamelStruct, frozen=True):
    id: str
    schema_string: str
    format: FileFormat = FileFormat()
    partition_columns: tuple[str, ...] = ()
    configuration: dict[str, str] = {}
    created_time: Id | None = None
    name: str | None = None
    description: str | None = None


class Txn(_CamelStruct, frozen=True, omit_defaults=True):
    app_id: str
    version: Id
    last_updated: Id | None = None


class Add(_CamelStruct, frozen=True, omit_defaults=True):
    path: str = msgspec.field()
    """Relative to the table, percent-encoded."""
    partition_values: dict[str, str | None] | None = None
    size: Id | None = None
    modification_time: Id | None = None
    data_change: bool | None = None
    stats: str | None = None
    deletion_vector: dict[str, Any] | None = None
    """Written only by other engines: some rows of the file are deleted."""


class Remove(_CamelStruct, frozen=True, omit_defaults=True):
    path: str = msgspec.field()
    deletion_timestamp: Id | None = None
    data_change: bool | None = None
    extended_file_metadata: bool | None = None
    partition_values: dict[str, str | None] | None = None
    size: Id | None = None


class Action(_CamelStruct, frozen=True, omit_defaults=True):
    """A line of a commit: one of its fields is set. Actions that do not change the table's state are not modelled."""

    commit_info: dict[str, Any] | None = None
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    txn: Txn | None = None
    add: Add | None = None
    remove: Remove | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Action).decode


def encoded(actions: Iterable[Action]) -> bytes:
    return b"".join(_encode(action) + b"\n" for action in actions)


def decoded(body: bytes, name: str) -> Iterator[Action]:
    for line in body.splitlines():
        if line.strip():
            try:
                yield _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise Corrupt(f"{name} is not a commit of a Delta table: {error}") from error


def converted(fields: Mapping[str, Any], kind: Any, name: str) -> Any:
    """Converts an action of a checkpoint."""
    try:
        return msgspec.convert(fields, kind)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{name} is not a checkpoint of a Delta table: {error}") from error
