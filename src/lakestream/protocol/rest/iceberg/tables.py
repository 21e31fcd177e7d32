"""Tables over REST: list, create (also staged), load, exists, commit, rename, register, drop, metrics."""

import logging
from collections.abc import Callable

from starlette.responses import Response

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable, Unsupported
from lakestream.catalog.names import TableName, check_table_name
from lakestream.catalog.shapes import written
from lakestream.coordination.freshness import Fresh
from lakestream.errors import Rejected
from lakestream.protocol.rest.iceberg.answers import etag, json_answer, nothing, table_answer
from lakestream.protocol.rest.iceberg.bodies import (
    CommitTable,
    CommitTables,
    CreateTable,
    RegisterTable,
    RenameTable,
    read_body,
    read_bytes,
)
from lakestream.protocol.rest.iceberg.calls import PAGE_SIZE_MAX, Call
from lakestream.protocol.rest.iceberg.fresh import HEADER, MakeFresh, asked_ms, told

log = logging.getLogger(__name__)


class TableCalls:
    def __init__(self, catalog: Catalog, on_purge: Callable[[], None], make_fresh: MakeFresh | None) -> None:
        self._catalog = catalog
        self._on_purge = on_purge
        self._make_fresh = make_fresh

    async def list(self, call: Call) -> Response:
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
        return json_answer(body)

    async def create(self, call: Call) -> Response:
        """POST namespaces/{namespace}/tables"""
        body = await read_body(call.request, CreateTable)
        name = check_table_name(call.namespace, body.name)
        if not body.stage_create:
            table = await self._catalog.create(
                name,
                body.schema,
                spec=body.partition_spec,
                order=body.write_order,
                location=body.location or "",
                properties=body.properties,
                fresh_ids=True,
            )
            return table_answer(table)
        staged = await self._catalog.stage(
            name,
            body.schema,
            spec=body.partition_spec,
            order=body.write_order,
            location=body.location or "",
            properties=body.properties,
            fresh_ids=True,
        )
        return json_answer({"metadata": written(staged), "config": {}})

    async def register(self, call: Call) -> Response:
        """POST namespaces/{namespace}/register"""
        body = await read_body(call.request, RegisterTable)
        name = check_table_name(call.namespace, body.name)
        table = await self._catalog.register(name, body.metadata_location, overwrite=bool(body.overwrite))
        return table_answer(table)

    async def load(self, call: Call) -> Response:
        """GET namespaces/{namespace}/tables/{table}?snapshots=all|refs, and X-Lakestream-Fresh (fresh.py)"""
        wanted = call.query("snapshots", "all").lower()
        if wanted not in ("all", "refs"):
            raise Rejected(f"snapshots is {wanted[:20]!r}: choose all or refs")
        fresh = await self._fresh(call)
        headers = {} if fresh is None else {HEADER: told(fresh)}
        try:
            table = await self._catalog.load(call.table)
        except NoSuchTable as error:
            if fresh is None or fresh.is_fresh:
                raise
            raise NoSuchTable(f"{error} yet ({fresh.why})") from error
        if call.request.headers.get("if-none-match") == etag(table, refs_only=wanted == "refs"):
            return Response(status_code=304, headers=headers)
        return table_answer(table, refs_only=wanted == "refs", headers=headers)

    async def _fresh(self, call: Call) -> Fresh | None:
        """Waits, if the client asked for it."""
        wait_ms = asked_ms(call.request.headers.get(HEADER))
        if wait_ms is None or self._make_fresh is None:
            return None
        fresh = await self._make_fresh(call.table, wait_ms)
        if not fresh.is_fresh:
            log.info("catalog.not_fresh table=%s why=%s", call.table, fresh.why)
        return fresh

    async def exists(self, call: Call) -> Response:
        """HEAD namespaces/{namespace}/tables/{table}"""
        await self._catalog.pointers.find(call.table)
        return nothing()

    async def commit(self, call: Call) -> Response:
        """POST namespaces/{namespace}/tables/{table}"""
        body = await read_body(call.request, CommitTable)
        return await self._commit(call.table, body)

    async def commit_several(self, call: Call) -> Response:
        """POST transactions/commit: of one table only, since several pointers cannot be moved at once."""
        changes = (await read_body(call.request, CommitTables)).table_changes
        if len(changes) != 1:
            raise Unsupported(f"a commit to {len(changes)} tables at once is not atomic here: commit to one at a time")
        if changes[0].identifier is None:
            raise Rejected("a change of a table lacks its identifier")
        await self._commit(changes[0].identifier.checked(), changes[0])
        return nothing()

    async def drop(self, call: Call) -> Response:
        """DELETE namespaces/{namespace}/tables/{table}?purgeRequested=…"""
        purge = call.flag("purgeRequested")
        await self._catalog.drop(call.table, purge=purge)
        if purge:
            self._on_purge()
        return nothing()

    async def rename(self, call: Call) -> Response:
        """POST tables/rename"""
        body = await read_body(call.request, RenameTable)
        await self._catalog.rename(body.source.checked(), body.destination.checked())
        return nothing()

    async def report(self, call: Call) -> Response:
        """POST namespaces/{namespace}/tables/{table}/metrics: taken, and not kept."""
        await read_bytes(call.request)
        return nothing()

    async def _commit(self, name: TableName, body: CommitTable) -> Response:
        if body.identifier is not None and body.identifier.checked() != name:
            raise Rejected(f"the path names table {name}, the body {body.identifier.checked()}")
        return table_answer(await self._catalog.commit(name, body.requirements, body.updates))
