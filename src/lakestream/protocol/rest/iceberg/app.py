"""The Iceberg REST catalog under /v1: one table of endpoints, which /v1/config returns to clients.

Follows the open specification. The catalog has no prefix: `{prefix}/` in the table matches nothing in a path.
"""

from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response

from lakestream.catalog.catalog import Catalog, CommitCheck
from lakestream.catalog.errors import Unsupported
from lakestream.protocol.rest.iceberg.errors import ERRORS
from lakestream.protocol.rest.iceberg.freshness_header import MakeFresh
from lakestream.protocol.rest.iceberg.namespaces import NamespaceCalls
from lakestream.protocol.rest.iceberg.requests import CatalogCall
from lakestream.protocol.rest.iceberg.responses import json_response
from lakestream.protocol.rest.iceberg.tables import TableCalls
from lakestream.protocol.rest.router import Endpoint, NotServed, RestApi, path_segments

UNSUPPORTED: Final = frozenset({"views", "plan", "tasks", "credentials", "functions", "register-view"})
"""Path segments of the specification's parts that are not served: they return 406 instead of 404."""


class IcebergRest(RestApi[CatalogCall]):
    def __init__(
        self,
        catalog: Catalog,
        guard: CommitCheck,
        config: Mapping[str, str],
        on_purge: Callable[[], None],
        make_fresh: MakeFresh | None = None,
    ) -> None:
        self._config = dict(config)
        endpoints = _endpoints(NamespaceCalls(catalog), TableCalls(catalog, guard, on_purge, make_fresh))
        super().__init__("catalog", endpoints, ERRORS, root="/v1/{prefix}")

    async def dispatch(self, request: Request) -> Response:
        path = path_segments(request, unquote_plus)[1:]  # without /v1; Java's client encodes a space as a plus
        if path == ("config",) and request.method == "GET":
            return self._show_config()
        try:
            endpoint, args = self.find(request, request.method, path)
        except NotServed:
            if UNSUPPORTED & set(path):
                text = f"{request.method} {request.url.path}: this part of the specification is not served"
                raise Unsupported(text) from None
            raise
        return await endpoint.handler(CatalogCall(request, args))

    def _show_config(self) -> Response:
        """Returns the settings as defaults: what the user configures in the client takes precedence."""
        served = [f"{endpoint.method} {endpoint.path}" for endpoint in self.endpoints if endpoint.path not in _UNLISTED]
        return json_response({"defaults": self._config, "overrides": {}, "endpoints": served})


_TRANSACTIONS: Final = "/v1/{prefix}/transactions/commit"
_UNLISTED: Final = frozenset({_TRANSACTIONS})
"""Endpoints that are served only in part. They are not listed, so that clients do not rely on them."""


def _endpoints(namespaces: NamespaceCalls, tables: TableCalls) -> list[Endpoint[CatalogCall]]:
    every, one = "/v1/{prefix}/namespaces", "/v1/{prefix}/namespaces/{namespace}"
    table = f"{one}/tables/{{table}}"
    return [
        Endpoint("GET", every, namespaces.list),
        Endpoint("POST", every, namespaces.create),
        Endpoint("GET", one, namespaces.load),
        Endpoint("HEAD", one, namespaces.exists),
        Endpoint("DELETE", one, namespaces.drop),
        Endpoint("POST", f"{one}/properties", namespaces.alter),
        Endpoint("GET", f"{one}/tables", tables.list),
        Endpoint("POST", f"{one}/tables", tables.create),
        Endpoint("POST", f"{one}/register", tables.register),
        Endpoint("GET", table, tables.load),
        Endpoint("HEAD", table, tables.exists),
        Endpoint("POST", table, tables.commit),
        Endpoint("DELETE", table, tables.drop),
        Endpoint("POST", f"{table}/metrics", tables.report),
        Endpoint("POST", "/v1/{prefix}/tables/rename", tables.rename),
        Endpoint("POST", _TRANSACTIONS, tables.commit_several),
    ]
