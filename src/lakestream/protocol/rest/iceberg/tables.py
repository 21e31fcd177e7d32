"""Endpoints of tables: list, create (also staged), load, exists, commit, rename, register, drop, metrics."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from starlette.responses import Response

from lakestream.catalog.catalog import Catalog, CommitCheck
from lakestream.catalog.commit_checks.topic_table import check_own_properties
from lakestream.catalog.errors import NoSuchTable, Unsupported
from lakestream.catalog.identifiers import TableName, check_table_name
from lakestream.catalog.table_metadata.builder import NewTable
from lakestream.catalog.table_metadata.json_model import file_json
from lakestream.coordination.freshness import FreshReadResult
from lakestream.errors import Rejected, Unavailable
from lakestream.protocol.rest.iceberg.freshness_header import HEADER, MakeFresh, header_value, requested_wait_ms
from lakestream.protocol.rest.iceberg.requests import (
    COMMIT_BYTES_MAX,
    PAGE_SIZE_MAX,
    CatalogCall,
    CommitTable,
    CommitTables,
    CreateTable,
    RegisterTable,
    RenameTable,
)
from lakestream.protocol.rest.iceberg.responses import etag, json_response, no_content, table_response
from lakestream.protocol.rest.request_body import read_bytes, read_json

log = logging.getLogger(__name__)

TABLES_AT_ONCE: Final = 8
"""Loads, and as many commits, that have a table's metadata in memory. Others wait: a metadata file has up to 64 MiB."""
SLOT_WAIT_S_MAX: Final = 10.0


class TableCalls:
    def __init__(
        self, catalog: Catalog, guard: CommitCheck, on_purge: Callable[[], None], make_fresh: MakeFresh | None
    ) -> None:
        self._catalog = catalog
        self._guard = guard
        self._on_purge = on_purge
        self._make_fresh = make_fresh
        self._loads, self._commits = asyncio.Semaphore(TABLES_AT_ONCE), asyncio.Semaphore(TABLES_AT_ONCE)

    async def list(self, call: CatalogCall) -> Response:
        """GET namespaces/{namespace}/tables"""
        namespace, page = call.namespace, call.page
        await self._catalog.namespaces.properties(namespace)
        start, size = (page.start, page.size) if page else ("", PAGE_SIZE_MAX)
        names: list[str] = []
        while True:
            listed = await self._catalog.pointers.page(namespace, start, size)
            names += listed.names
            start = listed.following
            if page is not None or not start:
                break
        body: dict[str, object] = {"identifiers": [{"namespace": namespace, "name": name} for name in names]}
        if page is not None:
            body["next-page-token"] = start or None
        return json_response(body)

    async def create(self, call: CatalogCall) -> Response:
        """POST namespaces/{namespace}/tables"""
        body = await read_json(call.request, CreateTable, COMMIT_BYTES_MAX)
        name = check_table_name(call.namespace, body.name)
        check_own_properties({}, body.properties or {})
        new = NewTable(
            body.schema, body.partition_spec, body.write_order, body.location or "", body.properties, fresh_ids=True
        )
        async with _slot(self._commits):
            if not body.stage_create:
                return await table_response(await self._catalog.create(name, new))
            staged = await self._catalog.stage(name, new)
            return json_response({"metadata": file_json(staged), "config": {}})

    async def register(self, call: CatalogCall) -> Response:
        """POST namespaces/{namespace}/register"""
        body = await read_json(call.request, RegisterTable)
        name = check_table_name(call.namespace, body.name)
        async with _slot(self._commits):
            table = await self._catalog.register(
                name, body.metadata_location, overwrite=bool(body.overwrite), check=self._guard
            )
            return await table_response(table)

    async def load(self, call: CatalogCall) -> Response:
        """GET namespaces/{namespace}/tables/{table}?snapshots=all|refs, and X-Lakestream-Fresh (freshness_header.py)"""
        snapshots = call.query("snapshots", "all").lower()
        if snapshots not in ("all", "refs"):
            raise Rejected(f"snapshots is {snapshots[:20]!r}: choose all or refs")
        fresh = await self._fresh(call)
        headers = {} if fresh is None else {HEADER: header_value(fresh)}
        refs_only = snapshots == "refs"
        async with _slot(self._loads):
            try:
                table = await self._catalog.load(call.table, parse=refs_only)
            except NoSuchTable as error:
                if fresh is None or fresh.is_fresh:
                    raise
                raise NoSuchTable(f"{error} yet ({fresh.reason})") from error
            if call.request.headers.get("if-none-match") == etag(table, refs_only=refs_only):
                return Response(status_code=304, headers=headers)
            return await table_response(table, refs_only=refs_only, headers=headers)

    async def _fresh(self, call: CatalogCall) -> FreshReadResult | None:
        """Waits until the table is fresh if the client requests it. Returns None if it does not."""
        wait_ms = requested_wait_ms(call.request.headers.get(HEADER))
        if wait_ms is None or self._make_fresh is None:
            return None
        fresh = await self._make_fresh(call.table, wait_ms)
        if not fresh.is_fresh:
            log.info("catalog.refresh_incomplete table=%s reason=%s", call.table, fresh.reason)
        return fresh

    async def exists(self, call: CatalogCall) -> Response:
        """HEAD namespaces/{namespace}/tables/{table}"""
        await self._catalog.pointers.find(call.table)
        return no_content()

    async def commit(self, call: CatalogCall) -> Response:
        """POST namespaces/{namespace}/tables/{table}"""
        body = await read_json(call.request, CommitTable, COMMIT_BYTES_MAX)
        return await self._commit(call.table, body)

    async def commit_several(self, call: CatalogCall) -> Response:
        """POST transactions/commit: for one table only, since the catalog cannot swap several pointers atomically."""
        changes = (await read_json(call.request, CommitTables, COMMIT_BYTES_MAX)).table_changes
        if len(changes) != 1:
            raise Unsupported(f"a commit to {len(changes)} tables cannot be atomic: commit to one table at a time")
        if changes[0].identifier is None:
            raise Rejected("table-changes: the change has no identifier")
        await self._commit(changes[0].identifier.checked(), changes[0])
        return no_content()

    async def drop(self, call: CatalogCall) -> Response:
        """DELETE namespaces/{namespace}/tables/{table}?purgeRequested=…"""
        purge = call.flag("purgeRequested")
        await self._catalog.drop(call.table, purge=purge)
        if purge:
            self._on_purge()
        return no_content()

    async def rename(self, call: CatalogCall) -> Response:
        """POST tables/rename"""
        body = await read_json(call.request, RenameTable)
        await self._catalog.rename(body.source.checked(), body.destination.checked())
        return no_content()

    async def report(self, call: CatalogCall) -> Response:
        """POST namespaces/{namespace}/tables/{table}/metrics: accepted and dropped."""
        await read_bytes(call.request, COMMIT_BYTES_MAX)
        return no_content()

    async def _commit(self, name: TableName, body: CommitTable) -> Response:
        if body.identifier is not None and body.identifier.checked() != name:
            raise Rejected(f"the path names table {name}, the body {body.identifier.checked()}")
        async with _slot(self._commits):
            return await table_response(await self._catalog.commit(name, body.requirements, body.updates, self._guard))


@asynccontextmanager
async def _slot(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """Holds a slot until the end of the block. Unavailable if none is free in time."""
    try:
        async with asyncio.timeout(SLOT_WAIT_S_MAX):
            await slots.acquire()
    except TimeoutError:
        raise Unavailable(
            f"{TABLES_AT_ONCE} requests work on tables for {SLOT_WAIT_S_MAX:g} s already: retry"
        ) from None
    try:
        yield
    finally:
        slots.release()
