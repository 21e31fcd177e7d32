"""Tests of the HTTP server on a socket: probes, metrics, limits and stop."""

import asyncio
import contextlib
import gzip
import json
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lakestream.errors import Unavailable
from lakestream.protocol.rest import health
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.server import HttpServer, HttpSettings


async def passing_check() -> None: ...


async def metrics() -> bytes:
    return b"x 1\n"


async def broken_metrics() -> bytes:
    raise RuntimeError("a bug")


@contextlib.asynccontextmanager
async def serving(
    checks: Health | None = None, settings: HttpSettings | None = None, broken: bool = False
) -> AsyncIterator[int]:
    server = HttpServer(settings or HttpSettings())
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(application(checks or Health({"store": passing_check}), broken_metrics if broken else metrics))
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
            HttpServer(HttpSettings()).bind("127.0.0.1", port)


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


# Limits


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int) -> Connection:
    return await asyncio.open_connection("127.0.0.1", port)


async def response_to(port: int, *parts: bytes) -> bytes:
    """Returns what the server sends until it closes the connection; it may close before all is sent."""
    reader, writer = await connect(port)
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
    async with asyncio.timeout(10):
        received = await received_by(reader)
    writer.close()
    return received


async def received_by(reader: asyncio.StreamReader) -> bytes:
    """Returns what arrives until the connection is closed, or reset because the client had sent more than was read."""
    received = b""
    try:
        while True:
            received += await reader.readexactly(1)
    except (asyncio.IncompleteReadError, ConnectionError):
        return received + bytes(reader._buffer)  # type: ignore[attr-defined]


HEAD_MAX = HttpSettings().head_bytes_max


async def test_head_above_the_limit_is_rejected_however_it_arrives() -> None:
    async with serving() as port:
        one_header = b"GET /healthz HTTP/1.1\r\nX: " + b"a" * HEAD_MAX + b"\r\n\r\n"
        many_headers = b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * HEAD_MAX + b"\r\n"
        url = b"GET /" + b"a" * HEAD_MAX + b" HTTP/1.1\r\n\r\n"
        for whole in (one_header, url):
            assert (await response_to(port, whole)).startswith(b"HTTP/1.1 431 "), whole[:40]
        endless = [b"GET /healthz HTTP/1.1\r\nX: ", *[b"a" * 10_000] * 1_000]
        for parts in ([many_headers], endless):  # the response may be lost, because the client still sends
            assert (await response_to(port, *parts))[:13] in (b"HTTP/1.1 431 ", b"")


async def test_head_that_does_not_arrive_in_time_is_rejected() -> None:
    """The client sends a byte now and then, so that the connection is never idle."""
    async with serving(settings=HttpSettings(head_s_max=1)) as port:
        reader, writer = await connect(port)

        async def trickle() -> None:
            for byte in b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 1_000:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.05)

        sending = asyncio.create_task(trickle())
        async with asyncio.timeout(5):
            assert (await received_by(reader)).startswith(b"HTTP/1.1 408 ")
        sending.cancel()
        writer.close()


async def test_bytes_around_chunks_of_a_body_are_limited() -> None:
    """A body in chunks of one byte would be five times as many bytes and a call of the parser for each."""
    head = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving() as port:
        sent = await response_to(port, head, *[b"1\r\na\r\n" * 10_000] * 20)
        assert b"HTTP/1.1 431 " in sent or sent == b""
        trailer = [head, b"0\r\nX: ", *[b"a" * 10_000] * 100]
        sent = await response_to(port, *trailer)
        assert b"HTTP/1.1 431 " in sent or sent == b""
        assert b"HTTP/1.1 405 " in await response_to(port, head, b"400\r\n" + b"a" * 1024 + b"\r\n0\r\n\r\n", CLOSING)


CLOSING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def test_requests_sent_ahead_are_limited() -> None:
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving() as port:
        assert (await response_to(port, request * 10 + CLOSING)).count(b"200 OK") == 11
        assert (await response_to(port, request * 1_000 + CLOSING)).count(b"200 OK") < 1_000
        assert (await send(port, "/healthz"))[0] == 200


async def test_connections_of_one_address_are_limited() -> None:
    server = HttpServer(HttpSettings(connections_per_address_max=3))
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(application(Health({}), metrics))
    try:
        open_ones = [await connect(port) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert await response_to(port, CLOSING) == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writer.write(CLOSING)
        assert b"200 OK" in await reader.read()
        assert (server.connections, server.refused) == (3, 1)
        for _, one in [*open_ones, (reader, writer)]:
            one.close()
        async with asyncio.timeout(5):
            while server.connections:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.01)
        assert b"200 OK" in await response_to(port, CLOSING)
    finally:
        await server.stop()


async def test_connection_is_closed_when_a_body_continues_after_its_response() -> None:
    """The response arrives before the end of a body up to the limit; a longer one is not received to its end."""
    head = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    async with serving(settings=HttpSettings(discarded_bytes_max=1 << 20)) as port:
        reader, writer = await connect(port)
        writer.write(head % (1 << 30))
        assert (await reader.readline()).startswith(b"HTTP/1.1 405 ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while sent < 1 << 29:
                    writer.write(b" " * 65_536)
                    await writer.drain()
                    sent += 65_536
        assert sent < 1 << 29
        writer.close()
        reader, writer = await connect(port)
        writer.write(head % (1 << 19) + b" " * (1 << 19) + CLOSING)
        responses = await reader.read()
        assert responses.count(b"HTTP/1.1 405 ") == responses.count(b"HTTP/1.1 200 ") == 1
        writer.close()


async def large_page() -> bytes:
    return b"x" * (8 << 20)


async def test_connection_is_closed_when_its_response_is_not_read() -> None:
    server = HttpServer(HttpSettings(idle_s_max=1, unread_bytes_max=4 << 20))
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(application(Health({}), large_page))
    try:
        _, writer = await connect(port)  # reads 128 KiB
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await asyncio.sleep(0.3)
        status, body = await send(port, "/metrics")  # too much is unread already
        assert (status, json.loads(body)) == (503, {"error": "clients do not read their responses: retry"})
        async with asyncio.timeout(5):
            while server.connections:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.05)
        assert (await send(port, "/healthz"))[0] == 200
        writer.close()
    finally:
        await server.stop()


async def test_response_that_is_read_slowly_arrives_whole() -> None:
    server = HttpServer(HttpSettings(idle_s_max=1))
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(application(Health({}), large_page))
    try:
        reader, writer = await connect(port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b""
        while part := await reader.read(1 << 20):
            received += part
            await asyncio.sleep(0.02)
        assert received.endswith(await large_page())
        writer.close()
    finally:
        await server.stop()


@pytest.mark.parametrize("ahead", [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"not HTTP\r\n\r\n"])
async def test_request_ends_when_the_client_disconnects_or_sends_an_invalid_one_ahead(ahead: bytes) -> None:
    """Else its response is written to a closed connection, which is an error in the log with uvloop."""
    started, gone = asyncio.Event(), asyncio.Event()
    ends: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        started.set()
        await gone.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(20):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(0.01)
        async with asyncio.timeout(1):
            ends.append(await receive())

    server = HttpServer(HttpSettings())
    _, port = server.bind("127.0.0.1", 0)
    await server.serve(app)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            await started.wait()
        writer.write(ahead)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        gone.set()
    finally:
        await server.stop()
    assert ends == [{"type": "http.disconnect"}]
