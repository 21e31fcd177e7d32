"""`GET /`: a page with addresses and links for browsers, and `{}` for other clients, like Confluent's registry."""

import html
import re
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from lakestream.errors import LakestreamError
from lakestream.protocol.rest.api import Cluster

_ACCEPTS_HTML: Final = re.compile(r"text/html(\s*;(?!\s*q=0(\.0*)?\s*(;|$))[^;]*)*")
"""Not with the weight 0, which means that the client does not accept it."""
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "vary": "accept",
}
_LINKS: Final = (
    ("/v1/config", "Iceberg REST catalog", "settings and endpoints; engines use this server's address as the URI"),
    ("/v1/namespaces/default/tables", "tables", "of the namespace <code>default</code>, one for each topic"),
    ("/subjects", "schema registry", "its subjects; serializers use this server's address as the URL"),
    ("/metrics", "metrics", "for Prometheus"),
    ("/readyz", "readiness", "and the reasons if something does not respond"),
)
_PAGE: Final = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Lakestream</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem; color: #1b1f24 }}
h1 {{ font-size: 1.5rem }} small {{ font-weight: normal; color: #57606a }}
td {{ padding: .25rem 1rem .25rem 0; vertical-align: top }} code {{ font-size: .95em }}
</style>
<h1>Lakestream <small>{version}</small></h1>
<p>Kafka brokers: {brokers}</p>
<table>
{links}
</table>
<p><code>lakestream status</code> prints topics, lag, tables and what is wrong.</p>
</html>
"""


class HomePage:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def show(self, request: Request) -> Response:
        if not accepts_html(request.headers.get("accept", "")):
            return JSONResponse({}, headers={"vary": "accept"})
        try:
            cluster = await self._cluster()
            version = cluster.version
            brokers = ", ".join(f"<code>{html.escape(one.address)}</code>" for one in cluster.brokers)
        except LakestreamError as error:
            version, brokers = "", html.escape(f"unknown: {error}")
        links = "\n".join(
            f'<tr><td><a href="{path}">{name}</a></td><td>{meaning}</td></tr>' for path, name, meaning in _LINKS
        )
        page = _PAGE.format(version=html.escape(version), brokers=brokers or "none is running", links=links)
        return HTMLResponse(page, headers=HEADERS)


def accepts_html(accept: str) -> bool:
    """Returns whether an Accept header names HTML, as those of browsers do. `*/*` does not."""
    return any(_ACCEPTS_HTML.fullmatch(part.strip()) for part in accept.lower().split(","))
