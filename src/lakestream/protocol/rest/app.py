"""What is served over HTTP. Errors are JSON too: `{"error": "…"}` with the status that fits.

Under /v1 is the Iceberg REST catalog, beside it the schema registry; errors of both look as their clients expect them.
"""

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.iceberg.app import METHODS, IcebergRest
from lakestream.protocol.rest.metrics import CONTENT_TYPE
from lakestream.protocol.rest.registry.app import ROUTES, RegistryRest


def application(
    health: Health,
    metrics: Callable[[], bytes],
    iceberg: IcebergRest | None = None,
    registry: RegistryRest | None = None,
) -> Starlette:
    async def show_metrics(request: Request) -> Response:
        return Response(metrics(), headers={"content-type": CONTENT_TYPE})

    routes = [
        Route("/healthz", health.live),
        Route("/readyz", health.ready),
        Route("/metrics", show_metrics),
    ]
    if registry is not None:
        routes += [Route(path, registry.handle, methods=METHODS) for path in ROUTES]
    if iceberg is not None:
        routes.append(Route("/v1/{rest:path}", iceberg.handle, methods=METHODS))
    return Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{request.method} {request.url.path}: {error.detail.lower()}"
    return JSONResponse({"error": said}, status_code=error.status_code, headers=error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    """The server logs its trace."""
    return JSONResponse({"error": "this is a fault of the server; its log says more"}, status_code=500)
