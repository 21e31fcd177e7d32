"""HTTP client of the commands: requests to a broker's HTTP port, and errors as one line."""

import json
from http.client import HTTPException
from typing import Any, Final
from urllib.parse import quote

from lakestream.cli.server import http_connection
from lakestream.errors import LakestreamError, Unavailable

WAIT_S: Final = 60
NOT_FOUND: Final = 404


def request(
    address: str, method: str, path: str, body: Any = None, what: str = "HTTP", wait_s: float = WAIT_S
) -> tuple[int, bytes]:
    """Returns status and body of the response. Unavailable if there is none; `what` names what should be there."""
    connection = http_connection(address, wait_s)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        with connection.getresponse() as response:
            return response.status, response.read()
    except (OSError, HTTPException) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Unavailable(
            f"no {what} can be reached at {address} ({reason}): start one with lakestream serve,"
            " or name another with --server"
        ) from error
    finally:
        connection.close()


def table_of(address: str, namespace: str, name: str, wait_s: float = WAIT_S) -> Any:
    """Returns a table's metadata, without old snapshots, from the catalog; None if there is no such table."""
    levels = quote("\x1f".join(namespace.split(".")), safe="")
    path = f"/v1/namespaces/{levels}/tables/{quote(name, safe='')}?snapshots=refs"
    status, body = request(address, "GET", path, what="catalog", wait_s=wait_s)
    if status == NOT_FOUND:
        return None
    if status >= 400:
        raise LakestreamError(f"the catalog at {address} returned {status} for table {namespace}.{name}")
    return json.loads(body)["metadata"]
