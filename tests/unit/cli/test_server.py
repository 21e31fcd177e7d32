"""Which server and which stores a command uses."""

import argparse
from pathlib import Path

import pytest

from lakestream.cli.options import add_options
from lakestream.cli.output.http_client import connection_to
from lakestream.cli.server import add_server, add_server_of_stores, resolve, runs_here
from lakestream.errors import Misconfigured, Unavailable
from lakestream.testing.processes import free_port


def parsed(*words: str, stores: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    if stores:
        add_server_of_stores(parser)
        add_options(parser)
    else:
        add_server(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:81", ("host", 81)),
        ("http://host", ("host", 80)),
        ("https://host/", ("host", 443)),
        ("host:81", ("host", 81)),
        ("host", ("host", 8080)),
        ("http://[::1]:81", ("::1", 81)),
    ],
)
def test_connection_is_to_the_host_and_port_of_the_url(url: str, address: tuple[str, int]) -> None:
    connection = connection_to(url, 1)
    assert (connection.host, connection.port) == address


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://host/path", ""])
def test_url_of_another_form_is_rejected(url: str) -> None:
    with pytest.raises(Misconfigured, match="write it as http://HOST:PORT"):
        connection_to(url, 1)


def test_former_options_take_precedence_and_need_no_server() -> None:
    arguments = parsed("--bootstrap", "b:1", "--http", "h:2", "--server", "http://s:3")
    resolve(arguments)
    assert (arguments.bootstrap, arguments.http) == ("b:1", "h:2")


def test_error_names_the_server_when_it_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        Unavailable, match=f"no Lakestream server can be reached at {server} .connection refused.*--server"
    ):
        resolve(parsed("--server", server))
    monkeypatch.setenv("LAKESTREAM_SERVER", server)
    with pytest.raises(Unavailable, match=server):
        resolve(parsed())


def test_command_opens_the_stores_when_they_are_named_or_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = {"LAKESTREAM_SERVER": "http://s:1"}
    assert runs_here(parsed(), {})  # not a command of stores
    assert not runs_here(parsed(stores=True), {})
    assert runs_here(parsed("--data-dir", "d", stores=True), server)
    assert runs_here(parsed(stores=True), {"LAKESTREAM_STORAGE": "s3://b"})
    (tmp_path / "lakestream-data").mkdir()
    assert runs_here(parsed(stores=True), {})
    assert not runs_here(parsed(stores=True), server)
    assert not runs_here(parsed("--server", "http://s:1", stores=True), {})
