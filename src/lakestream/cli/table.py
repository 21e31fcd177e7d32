"""`lakestream table refresh`: waits until a topic's table has all that was acknowledged. Over the catalog's HTTP."""

import argparse
import json
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Final
from urllib.parse import quote

from lakestream.addresses import parse_address
from lakestream.durations import milliseconds
from lakestream.errors import LakestreamError, Missing, Rejected, Unavailable

HTTP: Final = "127.0.0.1:8080"
HTTP_PORT: Final = 8080
HEADER: Final = "X-Lakestream-Fresh"
WAIT: Final = "30s"
SPARE_S: Final = 10
"""For the answer itself, when the waiting is over."""


def configure_refresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--wait", metavar="TIME", default=WAIT, help=f"so long at most, up to 60s ({WAIT})")
    parser.add_argument("--namespace", metavar="NAME", default="default", help="where its table is (default)")
    parser.add_argument("--http", metavar="HOST:PORT", default=HTTP, help=f"where a broker serves the catalog ({HTTP})")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=refresh)


def refresh(arguments: argparse.Namespace) -> int:
    try:
        wait_ms = milliseconds(arguments.wait)
    except ValueError as error:
        raise Rejected(f"--wait: {error}") from error
    said, _, why = _asked(arguments, wait_ms).partition("; ")
    name = f"{arguments.namespace}.{arguments.topic}"
    if said != "yes":
        raise LakestreamError(f"table {name} does not have everything yet: {why or 'the server does not say why'}")
    if arguments.json:
        print(json.dumps({"table": name, "fresh": True}))
    else:
        print(f"table {name} has everything that was acknowledged")
    return 0


def _asked(arguments: argparse.Namespace, wait_ms: int) -> str:
    """What the catalog says of the table."""
    host, port = parse_address(arguments.http, "--http", HTTP_PORT)
    connection = HTTPConnection(host, port, timeout=wait_ms / 1000 + SPARE_S)
    levels = quote("\x1f".join(arguments.namespace.split(".")), safe="")
    path = f"/v1/namespaces/{levels}/tables/{quote(arguments.topic, safe='')}?snapshots=refs"
    try:
        connection.request("GET", path, headers={HEADER: f"{wait_ms}ms"})
        with connection.getresponse() as answer:
            return _said(answer, arguments)
    except (OSError, HTTPException) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Unavailable(
            f"no catalog can be reached at {arguments.http} ({reason}): start one with lakestream serve,"
            " or name another with --http"
        ) from error
    finally:
        connection.close()


def _said(answer: HTTPResponse, arguments: argparse.Namespace) -> str:
    body = answer.read()
    if answer.status == 404:
        raise Missing(f"{_message(body)}; a table is made with its topic's first records")
    if answer.status != 200:
        raise LakestreamError(f"{arguments.http} answers {answer.status}: {_message(body)}")
    return answer.getheader(HEADER) or "no; it is no server of Lakestream, or an older one"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
