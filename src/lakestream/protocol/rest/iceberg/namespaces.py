"""Namespaces over REST: list, create, load, exists, drop, properties."""

from urllib.parse import unquote_plus

from starlette.responses import Response

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchNamespace
from lakestream.catalog.names import Namespace, check_namespace
from lakestream.errors import Rejected
from lakestream.protocol.rest.iceberg.answers import json_answer, nothing
from lakestream.protocol.rest.iceberg.bodies import AlterNamespace, CreateNamespace, read_body
from lakestream.protocol.rest.iceberg.calls import SEPARATOR, Call
from lakestream.protocol.rest.iceberg.errors import Unprocessable


class NamespaceCalls:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._namespaces = catalog.namespaces

    async def list(self, call: Call) -> Response:
        """GET namespaces?parent=…"""
        parent: Namespace = ()
        if text := call.query("parent"):
            parent = await self._parent(text)
        found = await self._namespaces.children(parent)
        if (page := call.page) is None:
            return json_answer({"namespaces": found})
        if page.start and not page.start.isdecimal():
            raise Rejected(f"pageToken is {page.start[:40]!r}: it is none of ours")
        start = int(page.start[:10] or 0)
        end = start + page.size
        return json_answer({"namespaces": found[start:end], "next-page-token": str(end) if end < len(found) else None})

    async def _parent(self, text: str) -> Namespace:
        parent = check_namespace(text.split(SEPARATOR))
        try:
            await self._namespaces.properties(parent)
        except NoSuchNamespace:
            # pyiceberg encodes it twice, so levels and odd names arrive still encoded.
            if (decoded := unquote_plus(text)) == text:
                raise
            parent = check_namespace(decoded.split(SEPARATOR))
            await self._namespaces.properties(parent)
        return parent

    async def create(self, call: Call) -> Response:
        """POST namespaces"""
        body = await read_body(call.request, CreateNamespace)
        namespace, properties = check_namespace(body.namespace), body.properties or {}
        await self._namespaces.create(namespace, properties)
        return json_answer({"namespace": namespace, "properties": properties})

    async def load(self, call: Call) -> Response:
        """GET namespaces/{namespace}"""
        properties = await self._namespaces.properties(call.namespace)
        return json_answer({"namespace": call.namespace, "properties": properties})

    async def exists(self, call: Call) -> Response:
        """HEAD namespaces/{namespace}"""
        await self._namespaces.properties(call.namespace)
        return nothing()

    async def drop(self, call: Call) -> Response:
        """DELETE namespaces/{namespace}"""
        await self._catalog.drop_namespace(call.namespace)
        return nothing()

    async def alter(self, call: Call) -> Response:
        """POST namespaces/{namespace}/properties"""
        body = await read_body(call.request, AlterNamespace)
        updates, removals = body.updates or {}, list(dict.fromkeys(body.removals or []))
        if both := [name for name in removals if name in updates]:
            raise Unprocessable(f"property {both[0]!r} is to be set and to be removed: choose one")
        altered = await self._namespaces.alter(call.namespace, updates, removals)
        return json_answer(altered._asdict())
