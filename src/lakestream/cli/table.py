"""`lakestream table refresh`: waits until a topic's table has all acknowledged records, over the catalog's HTTP."""

import argparse
import json
from http.client import HTTPResponse
from typing import Final
from urllib.parse import quote

from lakestream.aio.progress import reported
from lakestream.cli.output.http_client import response_to
from lakestream.cli.server import add_server
from lakestream.config.parsing import parse_milliseconds
from lakestream.errors import LakestreamError, Missing, Rejected

HEADER: Final = "X-Lakestream-Fresh"
WAIT: Final = "30s"
SPARE_S: Final = 10
"""For the response after the wait."""


def configure_refresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--wait", metavar="TIME", default=WAIT, help=f"longest wait, up to 60s ({WAIT})")
    parser.add_argument("--namespace", metavar="NAME", default="default", help="namespace of its table (default)")
    add_server(parser, kafka=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=refresh)


def refresh(arguments: argparse.Namespace) -> int:
    try:
        wait_ms = parse_milliseconds(arguments.wait)
    except ValueError as error:
        raise Rejected(f"--wait: {error}") from error
    is_fresh, _, reason = _request(arguments, wait_ms).partition("; ")
    name = f"{arguments.namespace}.{arguments.topic}"
    if is_fresh != "yes":
        why = reason or "the server returned no reason"
        raise LakestreamError(f"table {name} does not have all acknowledged records yet: {why}")
    if arguments.json:
        print(json.dumps({"table": name, "fresh": True}))
    else:
        print(f"table {name} has all acknowledged records")
    return 0


def _request(arguments: argparse.Namespace, wait_ms: int) -> str:
    """Loads the table from the catalog with the header; returns the header of the response."""
    levels = quote("\x1f".join(arguments.namespace.split(".")), safe="")
    path = f"/v1/namespaces/{levels}/tables/{quote(arguments.topic, safe='')}?snapshots=refs"
    headers, wait_s = {HEADER: f"{wait_ms}ms"}, wait_ms / 1000 + SPARE_S
    with (
        reported(f"waiting for the records of table {arguments.namespace}.{arguments.topic}"),
        response_to(arguments.http, "GET", path, headers=headers, what="catalog", wait_s=wait_s) as response,
    ):
        return _freshness(response, arguments)


def _freshness(response: HTTPResponse, arguments: argparse.Namespace) -> str:
    body = response.read()
    if response.status == 404:
        raise Missing(f"{_message(body)}; the pipeline creates a table with its topic's first records")
    if response.status != 200:
        raise LakestreamError(f"{arguments.http} returned {response.status}: {_message(body)}")
    return response.getheader(HEADER) or "no; the server is not Lakestream, or an older version"


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
