"""Requests of the Iceberg REST API: their bodies, and the namespace, table and page that they name."""

from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.identifiers import Namespace, TableName, check_namespace, check_table_name
from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.table_metadata.requirements import Requirement
from lakestream.catalog.table_metadata.updates import Update
from lakestream.errors import Rejected
from lakestream.model import MiB
from lakestream.protocol.rest.router import RestCall

COMMIT_BYTES_MAX: Final = 16 * MiB
"""Of the body of a commit, which may have a schema of thousands of columns and many snapshots."""


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


SEPARATOR: Final = "\x1f"
"""Separates the levels of a namespace in paths and queries."""
PAGE_SIZE_MAX: Final = 1_000


class Page(NamedTuple):
    start: str
    size: int


class CatalogCall(RestCall):
    __slots__ = ()

    @property
    def namespace(self) -> Namespace:
        return check_namespace(self.args[0].split(SEPARATOR))

    @property
    def table(self) -> TableName:
        return check_table_name(self.namespace, self.args[1])

    @property
    def page(self) -> Page | None:
        """The page that the client requests, or None if it requests the whole list."""
        if "pageToken" not in self.request.query_params and "pageSize" not in self.request.query_params:
            return None
        text = self.query("pageSize") or str(PAGE_SIZE_MAX)
        if not text.isdecimal() or int(text[:10]) == 0:
            raise Rejected(f"pageSize is {text[:20]!r}: give a number from 1 on")
        return Page(self.query("pageToken"), min(int(text[:10]), PAGE_SIZE_MAX))
