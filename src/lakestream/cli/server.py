"""`--server URL`: the one address of commands, and what they do with it.

From the server's HTTP address a command learns the addresses of the Kafka brokers. A command that needs the stores is
run by the server itself, unless options name the stores, or the folder `lakestream-data` is here.

    --server > LAKESTREAM_SERVER > http://127.0.0.1:8080
    --bootstrap and --http, the former options, take precedence for what they name
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPResponse
from typing import Any, Final

from lakestream.cli.exit_status import exit_reason, fail
from lakestream.cli.options import ENVIRONMENT_PREFIX, SERVER_VARIABLE, STORE_OPTIONS
from lakestream.cli.output.http_client import response_to
from lakestream.config.parsing import format_address
from lakestream.config.settings import Settings
from lakestream.errors import LakestreamError, Unavailable, Uncertain

SERVER: Final = "http://127.0.0.1:8080"
BOOTSTRAP: Final = "127.0.0.1:9092"
CLUSTER_S_MAX: Final = 5.0
COMMAND_S_MAX: Final = 24 * 60 * 60.0
"""Of a command that the server runs, between two of its lines: `doctor --full` reads everything."""


def add_server(parser: argparse.ArgumentParser, *, kafka: bool = True) -> None:
    """Adds `--server`, and the former options for the addresses behind it. `kafka`: the command uses Kafka, too."""
    parser.add_argument("--server", metavar="URL", help=f"HTTP address of Lakestream ({SERVER}) [${SERVER_VARIABLE}]")
    parser.add_argument("--http", metavar="HOST:PORT", help=argparse.SUPPRESS)
    if kafka:
        parser.add_argument("--bootstrap", metavar="HOST:PORT[,…]", help=argparse.SUPPRESS)
    parser.set_defaults(uses_server=True)


def add_server_of_stores(parser: argparse.ArgumentParser) -> None:
    """Adds `--server` to a command that the server runs."""
    parser.add_argument(
        "--server",
        metavar="URL",
        help=f"server that runs the command, if no option names the stores ({SERVER}) [${SERVER_VARIABLE}]",
    )
    parser.add_argument("--parent-process", metavar="PID", type=int, default=0, help=argparse.SUPPRESS)
    parser.set_defaults(runs_on_server=True)


def resolve(arguments: argparse.Namespace) -> None:
    """Sets the addresses of Kafka and HTTP that the command uses."""
    if not getattr(arguments, "uses_server", False):
        return
    server = _server_of(arguments)
    if arguments.http is None:
        arguments.http = server or SERVER
    if getattr(arguments, "bootstrap", "") is None:
        arguments.bootstrap = _brokers_of(server) if server else _brokers_here()


def runs_here(arguments: argparse.Namespace, environment: Mapping[str, str]) -> bool:
    """Returns whether the command opens the stores itself: options name them, or they are in this folder."""
    if not getattr(arguments, "runs_on_server", False):
        return True
    if arguments.server:
        return False
    names = [option.name for option in STORE_OPTIONS]
    if arguments.config or any(getattr(arguments, name) is not None for name in names):
        return True
    if any(ENVIRONMENT_PREFIX + name.upper() in environment for name in (*names, "config")):
        return True
    return not environment.get(SERVER_VARIABLE) and Settings().data_dir.is_dir()


def run_on_server(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Has the server run the command; prints its output and returns its exit code."""
    server = _server_of(arguments) or SERVER
    has_begun = False
    try:
        for line in _lines(server, "POST", "/api/v1/commands", {"words": [*_without_server(words)]}):
            has_begun = True
            if "exit_code" in line:
                return _exit_code(int(line["exit_code"]), server)
            stream = sys.stderr if "error" in line else sys.stdout
            print(line.get("error", line.get("output", "")), end="", file=stream, flush=True)
    except Unavailable as error:
        if not has_begun:
            raise Unavailable(f"{error}, or the stores with --data-dir") from error
    raise Uncertain(f"{server} closed the connection before the command ended: check what it did before you repeat it")


def _exit_code(code: int, server: str) -> int:
    return code if code >= 0 else fail(f"{server}: the command ended early: {exit_reason(code)}", 1)


def _server_of(arguments: argparse.Namespace) -> str:
    return str(arguments.server or os.environ.get(SERVER_VARIABLE) or "")


def _brokers_here() -> str:
    """Returns the brokers of the server on this machine; Kafka's default address if there is no HTTP."""
    try:
        return _brokers_of(SERVER)
    except LakestreamError:
        return BOOTSTRAP


def _brokers_of(server: str) -> str:
    try:
        (cluster,) = _lines(server, "GET", "/api/v1/cluster", None, CLUSTER_S_MAX)
        brokers = [format_address(broker["host"], broker["port"]) for broker in cluster["brokers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LakestreamError(f"{server} is not Lakestream's HTTP port: its response has no brokers") from error
    if not brokers:
        raise Unavailable(f"{server} has no Kafka broker: start one with lakestream serve or lakestream broker")
    return ",".join(brokers)


def _lines(server: str, method: str, path: str, body: Any, wait_s: float = COMMAND_S_MAX) -> Iterator[Any]:
    """Yields the JSON objects of a response, one of each line, as they arrive."""
    with response_to(server, method, path, body, what="Lakestream server", wait_s=wait_s) as response:
        if response.status != 200:
            raise LakestreamError(f"{server} returned {response.status}: {_reason(response)}")
        for line in response:
            try:
                yield json.loads(line)
            except ValueError as error:
                raise LakestreamError(f"{server} is not Lakestream's HTTP port: its response is not JSON") from error


def _reason(response: HTTPResponse) -> str:
    text = response.read(10_000)
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")


def _without_server(words: Sequence[str]) -> Iterator[str]:
    """Yields the command line without `--server URL`."""
    skips = False
    for word in words:
        if skips:
            skips = False
        elif word == "--server":
            skips = True
        elif not word.startswith("--server="):
            yield word
