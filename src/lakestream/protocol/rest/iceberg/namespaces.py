"""Endpoints of namespaces: list, create, load, exists, drop, properties."""

from urllib.parse import unquote_plus

from starlette.responses import Response

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchNamespace
from lakestream.catalog.identifiers import Namespace, check_namespace
from lakestream.errors import Rejected
from lakestream.protocol.rest.iceberg.requests import SEPARATOR, AlterNamespace, CatalogCall, CreateNamespace
from lakestream.protocol.rest.iceberg.responses import json_response, no_content
from lakestream.protocol.rest.request_body import read_json
from lakestream.protocol.rest.router import Unprocessable


class NamespaceCalls:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._namespaces = catalog.namespaces

    async def list(self, call: CatalogCall) -> Response:
        """GET namespaces?parent=…"""
        parent: Namespace = ()
        if text := call.query("parent"):
            parent = await self._parent(text)
        children = await self._namespaces.children(parent)
        if (page := call.page) is None:
            return json_response({"namespaces": children})
        if page.start and not page.start.isdecimal():
            raise Rejected(f"pageToken is {page.start[:40]!r}: use the token of the previous page")
        start = int(page.start[:10] or 0)
        end = start + page.size
        return json_response(
            {"namespaces": children[start:end], "next-page-token": str(end) if end < len(children) else None}
        )

    async def _parent(self, text: str) -> Namespace:
        parent = check_namespace(text.split(SEPARATOR))
        try:
            await self._namespaces.properties(parent)
        except NoSuchNamespace:
            # pyiceberg encodes the parent twice, so separators and special characters are still encoded here.
            if (decoded := unquote_plus(text)) == text:
                raise
            parent = check_namespace(decoded.split(SEPARATOR))
            await self._namespaces.properties(parent)
        return parent

    async def create(self, call: CatalogCall) -> Response:
        """POST namespaces"""
        body = await read_json(call.request, CreateNamespace)
        namespace, properties = check_namespace(body.namespace), body.properties or {}
        await self._namespaces.create(namespace, properties)
        return json_response({"namespace": namespace, "properties": properties})

    async def load(self, call: CatalogCall) -> Response:
        """GET namespaces/{namespace}"""
        properties = await self._namespaces.properties(call.namespace)
        return json_response({"namespace": call.namespace, "properties": properties})

    async def exists(self, call: CatalogCall) -> Response:
        """HEAD namespaces/{namespace}"""
        await self._namespaces.properties(call.namespace)
        return no_content()

    async def drop(self, call: CatalogCall) -> Response:
        """DELETE namespaces/{namespace}"""
        await self._catalog.drop_namespace(call.namespace)
        return no_content()

    async def alter(self, call: CatalogCall) -> Response:
        """POST namespaces/{namespace}/properties"""
        body = await read_json(call.request, AlterNamespace)
        updates, removals = body.updates or {}, list(dict.fromkeys(body.removals or []))
        if both := [name for name in removals if name in updates]:
            raise Unprocessable(f"property {both[0]!r} is both updated and removed: choose one")
        altered = await self._namespaces.alter(call.namespace, updates, removals)
        return json_response(altered._asdict())
