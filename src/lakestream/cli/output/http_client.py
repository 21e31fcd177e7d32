"""HTTP client of the commands: requests to an HTTP port of Lakestream, and errors as one line."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlsplit

from lakestream.errors import LakestreamError, Misconfigured, Unavailable

HTTP_PORT: Final = 8080
WAIT_S: Final = 60
NOT_FOUND: Final = 404
_JSON: Final = {"content-type": "application/json"}


@contextmanager
def response_to(
    address: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    what: str = "HTTP",
    wait_s: float = WAIT_S,
) -> Iterator[HTTPResponse]:
    """Sends a request; yields the response. Unavailable if there is none; `what` names what should be there.

    `address`: a URL, or HOST[:PORT]."""
    connection = connection_to(address, wait_s)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, {**({} if body is None else _JSON), **(headers or {})})
        with connection.getresponse() as response:
            yield response
    except (OSError, HTTPException) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Unavailable(
            f"no {what} can be reached at {address} ({reason}): start one with lakestream serve,"
            " or name another with --server"
        ) from error
    finally:
        connection.close()


def connection_to(address: str, wait_s: float) -> HTTPConnection:
    """Returns a connection, not open yet, to a URL or HOST[:PORT]. Misconfigured if the address is neither."""
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.path.strip("/"):
        raise Misconfigured(f"--server {address!r}: write it as http://HOST:PORT")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return kind(parts.hostname, port or (None if "://" in address else HTTP_PORT), timeout=wait_s)


def request(
    address: str, method: str, path: str, body: Any = None, what: str = "HTTP", wait_s: float = WAIT_S
) -> tuple[int, bytes]:
    """Returns status and body of the response; raises as `response_to`."""
    with response_to(address, method, path, body, what=what, wait_s=wait_s) as response:
        return response.status, response.read()


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
