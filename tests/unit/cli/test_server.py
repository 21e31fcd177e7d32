"""Which server and which stores a command uses."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakestream.cli import server
from lakestream.cli.options import add_options
from lakestream.cli.output.http_client import connection_to
from lakestream.cli.server import add_server, add_server_of_stores, resolve, run_on_server, runs_here
from lakestream.errors import LakestreamError, Misconfigured, Unavailable
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
    address = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(
        Unavailable, match=f"no Lakestream server can be reached at {address} .connection refused.*--server"
    ):
        resolve(parsed("--server", address))
    monkeypatch.setenv("LAKESTREAM_SERVER", address)
    with pytest.raises(Unavailable, match=address):
        resolve(parsed())


def test_command_opens_the_stores_when_they_are_named_or_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    variable = {"LAKESTREAM_SERVER": "http://s:1"}
    assert runs_here(parsed(), {})  # not a command of stores
    assert not runs_here(parsed(stores=True), {})
    assert runs_here(parsed("--data-dir", "d", stores=True), variable)
    assert runs_here(parsed(stores=True), {"LAKESTREAM_STORAGE": "s3://b"})
    (tmp_path / "lakestream-data").mkdir()
    assert runs_here(parsed(stores=True), {})
    assert not runs_here(parsed(stores=True), variable)
    assert not runs_here(parsed("--server", "http://s:1", stores=True), {})


class Response(list[Any]):
    """Lines of a response, which may end with an error."""

    def __iter__(self) -> Iterator[Any]:
        for line in super().__iter__():
            if isinstance(line, Exception):
                raise line
            yield line


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], "closed the connection before the command ended: check what it did"),
        ([{"output": "a"}, Unavailable("gone")], "closed the connection before the command ended"),
        ([Unavailable("no server")], "no server, or the stores with --data-dir"),
    ],
)
def test_command_is_not_reported_as_done_when_its_exit_code_is_missing(
    lines: list[Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_lines", lambda *_: iter(Response(lines)))
    with pytest.raises(LakestreamError, match=error):
        run_on_server(parsed("--server", "http://s:1", stores=True), ["doctor"])


def test_command_fails_with_the_reason_when_a_signal_ended_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "_lines", lambda *_: iter([{"output": "a\n"}, {"exit_code": -9}]))
    assert run_on_server(parsed("--server", "http://s:1", stores=True), ["doctor"]) == 1
    assert capsys.readouterr() == ("a\n", "lakestream: http://s:1: the command ended early: killed_by=SIGKILL\n")


@pytest.mark.parametrize("lines", [[], [{}], [{"brokers": 1}], [1], [{"brokers": []}, {}]])
def test_another_http_server_is_an_error_line(lines: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_lines", lambda *_: iter(lines))
    with pytest.raises(LakestreamError, match="its response has no brokers"):
        resolve(parsed("--server", "http://s:1"))
    arguments = parsed()
    resolve(arguments)
    assert arguments.bootstrap == "127.0.0.1:9092"
