"""The HTTP application: probes, metrics, a home page, the Iceberg REST catalog under /v1, and the schema registry.

Errors of the two APIs have the form that their clients expect. All other errors are JSON: `{"error": "…"}`.
"""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lakestream.protocol.rest.api import ROOT as API_ROOT
from lakestream.protocol.rest.api import LakestreamApi
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.home import HomePage
from lakestream.protocol.rest.iceberg import errors as iceberg_errors
from lakestream.protocol.rest.iceberg.app import IcebergRest
from lakestream.protocol.rest.metrics_response import metrics_response
from lakestream.protocol.rest.router import INTERNAL_ERROR, METHODS
from lakestream.protocol.rest.same_origin import LOOPBACK, HostNames, Refusal, refusal
from lakestream.protocol.rest.schema_registry import errors as registry_errors
from lakestream.protocol.rest.schema_registry.app import ROUTES, RegistryRest


def application(
    health: Health,
    metrics: Callable[[], Awaitable[bytes]],
    iceberg: IcebergRest | None = None,
    registry: RegistryRest | None = None,
    hosts: HostNames = LOOPBACK,
    home: HomePage | None = None,
    api: LakestreamApi | None = None,
) -> Starlette:
    """`hosts`: the names under which clients may reach this server. Requests for other hosts are rejected."""

    async def show_metrics(request: Request) -> Response:
        return await metrics_response(await metrics(), request.headers.get("accept-encoding", ""))

    routes = [
        Route("/healthz", health.live),
        Route("/readyz", health.ready),
        Route("/metrics", show_metrics),
    ]
    if home is not None:
        routes.append(Route("/", home.show))
    if api is not None:
        routes.append(Route(f"{API_ROOT}/{{rest:path}}", api.handle, methods=METHODS))
    if registry is not None:
        routes += [Route(path, registry.handle, methods=METHODS) for path in ROUTES]
    if iceberg is not None:
        routes.append(Route("/v1/{rest:path}", iceberg.handle, methods=METHODS))
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


class _Guard:
    """Rejects requests that a page of another site made a browser send, on any path (same_origin.py)."""

    def __init__(self, app: ASGIApp, hosts: HostNames) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        refused = refusal(scope["method"], path, scope["http_version"], scope["headers"], self._hosts)
        app = self._app if refused is None else _refusal_response(path, refused)
        await app(scope, receive, send)


def _refusal_response(path: str, refused: Refusal) -> Response:
    """Returns the error in the form of the API at this path."""
    if path.startswith("/v1/") and not path.startswith("/v1/metadata"):
        kind = "ForbiddenException" if refused.status == 403 else "BadRequestException"
        return iceberg_errors.error_response(refused.status, kind, refused.message)
    return registry_errors.error_response(refused.status, refused.status, refused.message)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return JSONResponse({"error": message}, status_code=error.status_code, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": INTERNAL_ERROR}, status_code=500)  # starlette raises it again, so it is logged
