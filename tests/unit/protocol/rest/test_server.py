"""Tests of the HTTP server on a socket: probes, metrics, limits and stop."""

import asyncio
import contextlib
import gzip
import json
import signal
from collections.abc import AsyncIterator

import pytest

from lakestream.errors import Unavailable
from lakestream.protocol.rest import health
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.server import HttpServer, HttpSettings


async def passing_check() -> None: ...


def broken_metrics() -> bytes:
    raise RuntimeError("a bug")


@contextlib.asynccontextmanager
async def serving(
    checks: Health | None = None, settings: HttpSettings | None = None, broken: bool = False
) -> AsyncIterator[int]:
    server = HttpServer(settings or HttpSettings())
    _, port = await server.bind("127.0.0.1", 0)
    await server.serve(
        application(checks or Health({"store": passing_check}), broken_metrics if broken else lambda: b"x 1\n")
    )
    try:
        yield port
    finally:
        async with asyncio.timeout(10):
            await server.stop()


async def send(port: int, path: str, method: str = "GET") -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        response = await reader.read()
    writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_probes_and_metrics_are_served_and_other_paths_rejected() -> None:
    async with serving() as port:
        assert await send(port, "/healthz") == (200, b'{"status":"ok"}')
        assert await send(port, "/readyz") == (200, b'{"status":"ready"}')
        assert await send(port, "/metrics") == (200, b"x 1\n")
        assert (await send(port, "/x"))[0] == 404
        assert (await send(port, "/metrics", "DELETE"))[0] == 405


async def test_metrics_are_compressed_when_the_client_accepts_gzip() -> None:
    async with serving() as port:
        for accepted, compressed in (("gzip", True), ("deflate, gzip;q=0.5", True), ("gzip;q=0, br", False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = ["GET /metrics HTTP/1.1", "Host: localhost", "Connection: close", f"Accept-Encoding: {accepted}"]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            async with asyncio.timeout(10):
                headers, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert b"vary: accept-encoding" in headers.lower()
            assert (b"content-encoding: gzip" in headers.lower()) == compressed
            assert (gzip.decompress(body) if compressed else body) == b"x 1\n"


async def test_internal_error_does_not_contain_the_exception(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(broken=True) as port:
        status, body = await send(port, "/metrics")
        assert (status, list(json.loads(body))) == (500, ["error"])
        assert b"a bug" not in body
        assert "a bug" in caplog.text
        assert (await send(port, "/healthz"))[0] == 200


async def test_server_installs_no_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    async with serving():
        assert signal.getsignal(signal.SIGTERM) is before


async def test_bind_fails_when_the_port_is_in_use() -> None:
    async with serving() as port:
        with pytest.raises(OSError, match="in use"):
            await HttpServer(HttpSettings()).bind("127.0.0.1", port)


async def test_connections_are_limited_and_closed_when_idle() -> None:
    async with serving(settings=HttpSettings(connections_max=2, idle_s_max=1)) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        silent[0][1].write(b"GET /healthz HT")  # an incomplete request
        await asyncio.sleep(0.1)
        with pytest.raises((ConnectionError, IndexError)):
            await send(port, "/healthz")
        async with asyncio.timeout(10):
            for reader, writer in silent:
                await reader.read()
                writer.close()
        assert (await send(port, "/healthz"))[0] == 200


async def test_stop_completes_requests_in_flight() -> None:
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.sleep(0.5)

    async with serving(Health({"slow": slow})) as port:
        request = asyncio.create_task(send(port, "/readyz"))
        await started.wait()
    assert (await request)[0] == 200


async def test_readyz_returns_reasons_and_caches_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks_run = []

    async def broken() -> None:
        checks_run.append(1)
        raise Unavailable("the store\nis down")

    async def hanging() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(health, "CHECK_S_MAX", 0.05)
    checks = Health({"passing": passing_check, "broken": broken, "hanging": hanging})
    failures = await asyncio.gather(*(checks.failures() for _ in range(20)))
    assert failures[0] == {"broken": "the store is down", "hanging": "no response within 0.05 s"}
    assert len(checks_run) == 1
