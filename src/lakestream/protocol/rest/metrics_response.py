"""The response of `/metrics`: the page of prometheus.py, compressed if the client accepts it."""

import asyncio
import gzip
from typing import Final

from starlette.responses import Response

from lakestream.protocol.rest.prometheus import CONTENT_TYPE

GZIP: Final = "gzip"
LEVEL: Final = 1
"""Pages are very repetitive: higher levels take several times as long and save little."""


async def metrics_response(page: bytes, accept_encoding: str) -> Response:
    """`accept_encoding`: the client's header, empty if there is none. Compresses in a thread."""
    headers = {"content-type": CONTENT_TYPE, "vary": "accept-encoding"}
    if accepts_gzip(accept_encoding):
        page = await asyncio.to_thread(gzip.compress, page, LEVEL)
        headers["content-encoding"] = GZIP
    return Response(page, headers=headers)


def accepts_gzip(accept_encoding: str) -> bool:
    """Returns whether the header lists gzip with a weight above 0."""
    for item in accept_encoding.lower().split(","):
        name, _, parameters = item.partition(";")
        if name.strip() in (GZIP, "x-gzip"):
            return _weight(parameters) > 0
    return False


def _weight(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0
