"""The HTTP server on a real socket, with an application of its own."""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator

import pytest

from lakestream.errors import Unavailable
from lakestream.protocol.rest import health
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.server import HttpServer, HttpSettings


async def fine() -> None: ...


def broken_metrics() -> bytes:
    raise RuntimeError("a bug")


@contextlib.asynccontextmanager
async def serving(
    checks: Health | None = None, settings: HttpSettings | None = None, broken: bool = False
) -> AsyncIterator[int]:
    server = HttpServer(settings or HttpSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(application(checks or Health({"it": fine}), broken_metrics if broken else lambda: b"x 1\n"))
    try:
        yield port
    finally:
        async with asyncio.timeout(10):
            await server.stop()


async def ask(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_what_is_served() -> None:
    async with serving() as port:
        assert await ask(port, "/healthz") == (200, b'{"status":"ok"}')
        assert await ask(port, "/readyz") == (200, b'{"status":"ready"}')
        assert await ask(port, "/metrics") == (200, b"x 1\n")
        assert (await ask(port, "/x"))[0] == 404
        assert (await ask(port, "/metrics", "DELETE"))[0] == 405


async def test_a_fault_of_ours_is_said_without_its_inside(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(broken=True) as port:
        status, body = await ask(port, "/metrics")
        assert (status, list(json.loads(body))) == (500, ["error"])
        assert b"a bug" not in body
        assert "a bug" in caplog.text
        assert (await ask(port, "/healthz"))[0] == 200


async def test_signals_stay_ours() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving():
        assert signal.getsignal(signal.SIGTERM) is before


async def test_a_port_that_is_taken() -> None:
    async with serving() as port:
        with pytest.raises(OSError, match="in use"):
            await HttpServer(HttpSettings()).bind("127.0.0.1", port)


async def test_connections_are_bounded_and_idle_ones_end() -> None:
    async with serving(settings=HttpSettings(connections_max=2, idle_s_max=1)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        silent[0][1].write(b"GET /healthz HT")  # and no more of it
        await asyncio.sleep(0.1)
        with pytest.raises((ConnectionError, IndexError)):
            await ask(port, "/healthz")
        async with asyncio.timeout(10):
            for reader, writer in silent:
                await reader.read()
                writer.close()
        assert (await ask(port, "/healthz"))[0] == 200


async def test_stopping_answers_what_was_asked() -> None:
    asked = asyncio.Event()

    async def slow() -> None:
        asked.set()
        await asyncio.sleep(0.5)

    async with serving(Health({"slow": slow})) as port:
        question = asyncio.create_task(ask(port, "/readyz"))
        await asked.wait()
    assert (await question)[0] == 200


async def test_not_ready_says_why_and_a_flood_of_probes_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    async def broken() -> None:
        looks.append(1)
        raise Unavailable("the store\nis away")

    async def hanging() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(health, "CHECK_S_MAX", 0.05)
    checks = Health({"fine": fine, "broken": broken, "hanging": hanging})
    found = await asyncio.gather(*(checks.troubles() for _ in range(20)))
    assert found[0] == {"broken": "the store is away", "hanging": "no answer within 0.05 s"}
    assert len(looks) == 1
