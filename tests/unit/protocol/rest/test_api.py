"""Lakestream's own API: addresses of brokers, and commands that a server runs for a client."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lakestream.errors import Rejected
from lakestream.metadata.brokers import Broker
from lakestream.protocol.rest import api
from lakestream.protocol.rest.api import ClusterInfo, LakestreamApi, checked
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.server import HttpServer, HttpSettings


async def no_metrics() -> bytes:
    return b""


async def cluster() -> ClusterInfo:
    return ClusterInfo("my-cluster", "1.2", [Broker(0, "host-1", 9092, "zone-a")])


@contextlib.asynccontextmanager
async def serving(script: str, settings: HttpSettings | None = None) -> AsyncIterator[int]:
    """Serves the API with a shell script instead of `lakestream`: it gets the words, then the flags of the stores."""
    server = HttpServer(settings or HttpSettings())
    _, port = server.bind("127.0.0.1", 0)
    commands = LakestreamApi(cluster, ["sh", "-c", script, "sh"], ["--data-dir", "d"])
    await server.serve(application(Health({}), no_metrics, api=commands))
    try:
        yield port
    finally:
        await commands.close()
        await server.stop()


async def send(
    port: int, method: str, path: str, body: object = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    text = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)
    return reader, writer


async def response(port: int, method: str, path: str, body: object = None) -> tuple[int, list[object]]:
    reader, writer = await send(port, method, path, body)
    async with asyncio.timeout(20):
        head, _, text = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), [json.loads(line) for line in text.splitlines() if line.startswith(b"{")]


async def run(port: int, *words: str) -> tuple[int, list[object]]:
    return await response(port, "POST", "/api/v1/commands", {"words": list(words)})


async def test_cluster_has_the_addresses_of_the_brokers() -> None:
    async with serving("true") as port:
        broker = {"node_id": 0, "host": "host-1", "port": 9092, "zone": "zone-a"}
        expected = {"cluster_id": "my-cluster", "version": "1.2", "brokers": [broker]}
        assert await response(port, "GET", "/api/v1/cluster") == (200, [expected])


async def test_command_gets_the_stores_of_the_server_and_its_output_is_returned() -> None:
    async with serving('echo "$@"; echo "problem" >&2; exit 3') as port:
        status, lines = await run(port, "table", "repair", "orders", "--json")
        assert status == 200
        assert {"output": f"table repair orders --json --data-dir d --parent-process {os.getpid()}\n"} in lines
        assert {"error": "problem\n"} in lines
        assert lines[-1] == {"exit_code": 3}


async def test_command_ends_when_its_client_disconnects(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    async with serving(f"trap 'touch {ended}; exit' TERM; while :; do echo line; sleep 0.05; done") as port:
        reader, writer = await send(port, "POST", "/api/v1/commands", {"words": ["doctor"]})
        async with asyncio.timeout(20):
            await reader.readuntil(b"line")
            writer.close()
            while not ended.exists():  # noqa: ASYNC110 -- another process does it
                await asyncio.sleep(0.02)


async def test_commands_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "COMMANDS_MAX", 1)
    async with serving("echo started; sleep 60") as port:
        reader, writer = await send(port, "POST", "/api/v1/commands", {"words": ["doctor"]})
        async with asyncio.timeout(20):
            await reader.readuntil(b"started")
            status, body = await run(port, "doctor")
        assert (status, body) == (503, [{"error": "1 commands are running, which is the maximum: retry"}])
        writer.close()


async def test_commands_are_limited_when_their_requests_arrive_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "COMMANDS_MAX", 2)
    async with serving("sleep 0.5") as port:
        statuses = [status for status, _ in await asyncio.gather(*(run(port, "doctor") for _ in range(10)))]
        assert statuses.count(200) == 2
        assert (await run(port, "doctor"))[0] == 200


async def test_output_is_complete_when_the_client_stops_reading_for_a_time() -> None:
    async with serving("seq 200000", HttpSettings(idle_s_max=1)) as port:
        reader, writer = await send(port, "POST", "/api/v1/commands", {"words": ["doctor"]})
        await asyncio.sleep(2.5)
        async with asyncio.timeout(20):
            text = await reader.read()
        assert b'{"output":"200000\\n"}' in text
        assert b'{"exit_code":0}' in text
        writer.close()


async def test_line_above_the_limit_is_reported_and_the_command_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "LINE_BYTES_MAX", 1_000)
    async with serving("head -c 100000 /dev/zero; echo; echo last") as port:
        _, lines = await run(port, "doctor")
        assert {"error": "lakestream: a line has more than 1000 bytes\n"} in lines
        assert {"output": "last\n"} in lines
        assert lines[-1] == {"exit_code": 0}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "the server does not run the command ''"),
        (["produce", "t"], "the server does not run the command 'produce t': it runs doctor, table dead-letters"),
        (["doctor", "--data-dir", "/"], "leave out --data-dir"),
        (["doctor", "--storage=file:///"], "leave out --storage"),
        (["table", "repair", "x" * 5_000], "one of more than 4096 characters"),
        (["doctor", "a\0b"], "one of more than 4096"),
    ],
)
def test_command_is_rejected_when_the_server_does_not_run_it_or_it_names_stores(words: list[str], error: str) -> None:
    with pytest.raises(Rejected, match=error.replace("(", r"\(")):
        checked(words)
