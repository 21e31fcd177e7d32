"""The Iceberg REST catalog under /v1: one table of endpoints, which is also what /v1/config tells clients.

The open specification is the rule. A prefix is never asked for, so `{prefix}/` in the table stands for nothing.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import Unsupported
from lakestream.errors import LakestreamError
from lakestream.protocol.rest.iceberg.answers import json_answer
from lakestream.protocol.rest.iceberg.calls import Call, segments
from lakestream.protocol.rest.iceberg.errors import NotServed, WrongMethod, answer, error_response
from lakestream.protocol.rest.iceberg.fresh import MakeFresh
from lakestream.protocol.rest.iceberg.namespaces import NamespaceCalls
from lakestream.protocol.rest.iceberg.tables import TableCalls

log = logging.getLogger(__name__)

Handler = Callable[[Call], Awaitable[Response]]

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
UNSUPPORTED: Final = frozenset({"views", "plan", "tasks", "credentials", "functions", "register-view"})
"""Parts of the specification that are not served: answered as such, not as a wrong path."""


class Endpoint(NamedTuple):
    method: str
    path: str
    handler: Handler

    @property
    def pattern(self) -> tuple[str, ...]:
        return tuple(self.path.removeprefix("/v1/{prefix}/").split("/"))


class IcebergRest:
    def __init__(
        self,
        catalog: Catalog,
        config: Mapping[str, str],
        on_purge: Callable[[], None],
        make_fresh: MakeFresh | None = None,
    ) -> None:
        self._config = dict(config)
        namespaces, tables = NamespaceCalls(catalog), TableCalls(catalog, on_purge, make_fresh)
        self.endpoints = _endpoints(namespaces, tables)

    async def handle(self, request: Request) -> Response:
        try:
            return await self._dispatch(request)
        except LakestreamError as error:
            return answer(error)
        except Exception:
            # A commit may have got through: 500 makes its client look before it removes anything.
            log.exception("catalog.fault %s %s", request.method, request.url.path)
            return error_response(500, "InternalServerError", "this is a fault of the server; its log says more")

    async def _dispatch(self, request: Request) -> Response:
        path = segments(request)
        if path == ("config",) and request.method == "GET":
            return self._show_config()
        fitting = [endpoint for endpoint in self.endpoints if _fits(endpoint.pattern, path)]
        for endpoint in fitting:
            if endpoint.method == request.method:
                args = tuple(part for part, name in zip(path, endpoint.pattern, strict=True) if name.startswith("{"))
                return await endpoint.handler(Call(request, args))
        if fitting:
            raise WrongMethod(f"{request.method} is not served here, but {', '.join(one.method for one in fitting)}")
        if UNSUPPORTED & set(path):
            raise Unsupported(f"{request.method} {request.url.path}: this part of the specification is not served")
        raise NotServed(f"there is nothing at {request.url.path}")

    def _show_config(self) -> Response:
        """Settings are defaults: what a client was told by its own user counts more."""
        served = [f"{endpoint.method} {endpoint.path}" for endpoint in self.endpoints if endpoint.path not in _UNTOLD]
        return json_answer({"defaults": self._config, "overrides": {}, "endpoints": served})


_TRANSACTIONS: Final = "/v1/{prefix}/transactions/commit"
_UNTOLD: Final = frozenset({_TRANSACTIONS})
"""Served only in part, so clients that look for it do without."""


def _endpoints(namespaces: NamespaceCalls, tables: TableCalls) -> list[Endpoint]:
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


def _fits(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        name.startswith("{") or name == part for name, part in zip(pattern, path, strict=True)
    )
