"""What clients send: bounded, decoded into values, and refused with the place where it is wrong."""

from typing import Final, TypeVar

import msgspec
from starlette.requests import Request

from lakestream.catalog.names import TableName, check_table_name
from lakestream.catalog.requirements import Requirement
from lakestream.catalog.shapes import Json
from lakestream.catalog.updates import Update
from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.protocol.rest import incoming

BODY_BYTES_MAX: Final = 16 * MiB
BODY_S_MAX: Final = 30

T = TypeVar("T")


class _Body(msgspec.Struct, frozen=True, rename="kebab"): ...


class Identifier(_Body, frozen=True):
    namespace: list[str]
    name: str

    def checked(self) -> TableName:
        return check_table_name(self.namespace, self.name)


class CreateNamespace(_Body, frozen=True):
    namespace: list[str]
    properties: dict[str, str] | None = None


class AlterNamespace(_Body, frozen=True):
    removals: list[str] | None = None
    updates: dict[str, str] | None = None


class CreateTable(_Body, frozen=True):
    name: str
    schema: Json
    location: str | None = None
    partition_spec: Json | None = None
    write_order: Json | None = None
    stage_create: bool | None = False
    properties: dict[str, str] | None = None


class CommitTable(_Body, frozen=True):
    requirements: list[Requirement]
    updates: list[Update]
    identifier: Identifier | None = None


class CommitTables(_Body, frozen=True):
    table_changes: list[CommitTable]


class RenameTable(_Body, frozen=True):
    source: Identifier
    destination: Identifier


class RegisterTable(_Body, frozen=True):
    name: str
    metadata_location: str
    overwrite: bool | None = False


async def read_body(request: Request, kind: type[T]) -> T:
    body = await read_bytes(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Rejected(f"the body of the request is wrong: {error}") from error
    except RecursionError as error:
        raise Rejected("the body of the request is nested too deeply") from error


async def read_bytes(request: Request) -> bytes:
    return await incoming.read_bytes(request, BODY_BYTES_MAX, BODY_S_MAX)
