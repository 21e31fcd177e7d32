"""Damaged requests to the HTTP port of a real broker, and files that the server reads because a client names them.

No response has the status 500, HTTP is not restarted, its memory is limited, and other clients are not delayed.

FUZZ_SEED=n repeats the requests of a run, FUZZ_S sets its duration, FUZZ_REQUESTS the number of requests that it sends
at least; SOAK=1 uses a new seed each time.
"""

import asyncio
import http.client
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from tests.harness.catalog.iceberg_tables import SCHEMA
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.moved_records import move, sample_records
from tests.harness.clients.programs import SOAK
from tests.harness.fuzz.catalog_requests import CatalogRequests, Sent
from tests.harness.fuzz.mutations import damaged_bytes, to_json
from tests.harness.fuzz.registry_requests import RegistryRequests
from tests.harness.fuzz.table_files import TableFiles

from lakestream.cli.main import main
from lakestream.testing.brokers import BrokerProcess, BrokerProcesses, brokers
from lakestream.testing.processes import free_port

pytestmark = pytest.mark.alone

SEED: Final = int(os.environ.get("FUZZ_SEED") or (random.randrange(2**32) if SOAK else 4))
FUZZ_S: Final = float(os.environ.get("FUZZ_S", "12"))
REQUESTS_MIN: Final = int(os.environ.get("FUZZ_REQUESTS", "1000000" if SOAK else "0"))
RUN_S_MAX: Final = FUZZ_S + REQUESTS_MIN / 100
MiB: Final = 1 << 20
CATALOG_CLIENTS: Final = 4
REGISTRY_CLIENTS: Final = 2
RAW_CLIENTS: Final = 2
RAW_EVERY: Final = 8
"""One of so many requests, so that at least half of all pass the parser."""
PIPELINED: Final = 4
RESPONSE_S_MAX: Final = 5.0
"""On a loaded machine."""
HEALTH_S_MAX: Final = 2.0
PRODUCE_S_MAX: Final = 1.0
GROWTH_BYTES_MAX: Final = 600 * MiB
"""Of all processes: the first check of a topic's table loads Arrow, and the first Protobuf schema its compiler."""
SLOW_CLIENTS: Final = 20

_NOT_PARSED: Final = re.compile(
    rb"request body is (invalid|not valid|nested)|is not valid HTTP|no endpoint|is damaged|cannot be read"
    rb"|method not allowed|not found\"|is not UTF-8"
)
"""Messages about requests and files that a parser rejects. Others are about their content."""


@dataclass
class Counts:
    sent: int = 0
    parsed: int = 0
    raw: int = 0
    """Connections with requests that are not made by a correct client."""
    closed: int = 0
    """Connections that the server closed before the response to a request."""
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: bytes = b""
    failures: list[str] = field(default_factory=list)

    def add(self, sent: bytes, status: int, body: bytes, took_s: float) -> None:
        self.sent += 1
        self.statuses[status] += 1
        self.parsed += not _NOT_PARSED.search(body[:2_000])
        if took_s > self.slowest_s:
            self.slowest_s, self.slowest = took_s, sent[:300]
        if status == 500 or status > 503:
            self.failures.append(f"{status} {body[:300]!r} for {sent[:3_000]!r}")


class Connection:
    """A connection that is kept open. The server may close it after any response."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, data: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=MiB)
        self._writer.write(data)

    async def response(self, method: str) -> tuple[int, bytes]:
        """Raises IncompleteReadError or OSError if the server closed the connection."""
        assert self._reader is not None
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        size = re.search(rb"\ncontent-length: (\d+)", head)
        has_body = method != "HEAD" and status not in (204, 304) and size is not None
        body = await self._reader.readexactly(int(size[1])) if has_body and size is not None else b""
        if b"connection: close" in head:
            self.close()
        return status, body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._writer = None


async def send_requests(port: int, make: Callable[[], Sent], counts: Counts, is_over: Callable[[], bool]) -> None:
    """Sends some requests ahead, and reads their responses, until the time is over."""
    connection = Connection(port)
    while not is_over() and not counts.failures:
        batch = [make() for _ in range(PIPELINED)]
        encoded = [one.encoded() for one in batch]
        start_s, answered = time.monotonic(), 0
        try:
            async with asyncio.timeout(RESPONSE_S_MAX * 2):
                await connection.send(b"".join(encoded))
                for one, data in zip(batch, encoded, strict=True):
                    status, body = await connection.response(one.method)
                    answered += 1
                    counts.add(data, status, body, time.monotonic() - start_s)
                    if one.learn is not None:
                        one.learn(status, body)
        except (asyncio.IncompleteReadError, OSError, AssertionError):
            counts.closed += 1
            connection.close()
        except TimeoutError:
            counts.failures.append(f"no response within {RESPONSE_S_MAX * 2} s to {encoded[answered][:3_000]!r}")
            connection.close()
    connection.close()


def raw_request(rng: random.Random) -> bytes:
    """Returns one or several requests in HTTP that may be damaged."""
    body = to_json({"namespace": ["raw"], "properties": {"a": "b" * rng.randrange(200)}})
    lines = [
        rng.choice(
            (
                *("POST /v1/namespaces HTTP/1.1", "GET /v1/config HTTP/1.1", "GET /subjects HTTP/1.0"),
                *("OPTIONS * HTTP/1.1", "CONNECT localhost:80 HTTP/1.1", "GET http://localhost/healthz HTTP/1.1"),
                *("PRI * HTTP/2.0", "GET /healthz", "GET ?a HTTP/1.1", "HEAD /metrics HTTP/1.1", "TRACE / HTTP/1.1"),
            )
        ),
        rng.choice(("Host: localhost", "Host: a", "Host:", "Host: localhost\r\nHost: b", "host:[::1]", "X: y")),
        rng.choice(("Content-Type: application/json", "Content-Type: text/plain", "Content-Type: ;;", "A: b")),
        rng.choice(
            (
                *("Connection: keep-alive", "Connection: close", "Connection: upgrade\r\nUpgrade: websocket"),
                *("Expect: 100-continue", "Expect: x", "Accept-Encoding: gzip;q=x", "Origin: http://x", "Origin: null"),
                *("Transfer-Encoding: gzip", "Content-Length: 5\r\nContent-Length: 6", "Range: bytes=0-"),
            )
        ),
        *(f"X-{number}: {'y' * rng.choice((0, 1, 900))}" for number in range(rng.choice((0, 0, 3, 90)))),
    ]
    if rng.random() < 0.5:
        lines.append(f"Content-Length: {rng.choice((len(body), len(body), len(body) + 9, 0, -1, 10**30))}")
        content = body
    else:
        lines.append(f"Transfer-Encoding: {rng.choice(('chunked', 'chunked', 'Chunked', 'chunked, chunked'))}")
        content = chunked(body, rng)
    request = "\r\n".join([*lines, "", ""]).encode() + content
    draw = rng.random()
    if draw < 0.3:
        request = damaged_bytes(request, rng)
    return request * rng.choice((1, 1, 1, 2, 5, 40))


def chunked(body: bytes, rng: random.Random) -> bytes:
    size = rng.choice((1, 7, 64, len(body)))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    suffix = rng.choice(("", "", ";a=b", ";" + "x" * 3_000))
    lengths = [f"{rng.choice(('', '', '', '0', '-', '+')) if rng.random() < 0.1 else ''}{len(one):x}" for one in pieces]
    made = b"".join(f"{size}{suffix}\r\n".encode() + one + b"\r\n" for size, one in zip(lengths, pieces, strict=True))
    return made + rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"", b"ffffffffffffffffff\r\n"))


async def send_raw(port: int, rng: random.Random, counts: Counts, is_over: Callable[[], bool]) -> None:
    """Sends damaged heads, chunks and truncated requests, each on its own connection and in several pieces."""
    while not is_over() and not counts.failures:
        while counts.raw * RAW_EVERY > counts.sent and not is_over():  # noqa: ASYNC110 - as many as other requests allow
            await asyncio.sleep(0.01)
        counts.raw += 1
        data = raw_request(rng)
        counts.sent += 1
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            received = b""
            try:
                for place in range(0, len(data), max(1, len(data) // rng.choice((1, 1, 2, 9)))):
                    if writer.is_closing():
                        break
                    writer.write(data[place : place + len(data) // 2 + 1])
                    await asyncio.sleep(0)
                writer.write_eof()
                async with asyncio.timeout(0.05):
                    while piece := await reader.read(65_536):
                        received += piece
            except TimeoutError:
                pass  # the request is incomplete
            finally:
                writer.transport.abort()
            statuses = [int(one) for one in re.findall(rb"HTTP/1\.[01] (\d\d\d)", received)]
            counts.statuses.update(statuses)
            counts.parsed += bool(statuses) and statuses[0] not in (400, 431)
            if any(status == 500 for status in statuses):
                counts.failures.append(f"{received[:500]!r} for {data[:3_000]!r}")


async def send_slowly(port: int, rng: random.Random, is_over: Callable[[], bool]) -> None:
    """Sends a byte of a request at a time, or does not read the responses."""
    while not is_over():
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                if rng.random() < 0.5:
                    writer.transport.pause_reading()  # type: ignore[attr-defined]
                    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 15)
                    await asyncio.sleep(2)
                for byte in raw_request(rng)[:200]:
                    if is_over() or writer.is_closing():
                        break
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0.05)
            finally:
                writer.transport.abort()


class OtherClients:
    """A client of `/healthz` on the HTTP port, one of a probe, and a Kafka producer, in threads of their own."""

    def __init__(self, broker: BrokerProcess, http_port: int, probe_port: int) -> None:
        self.slowest_s = {"http": 0.0, "probe": 0.0, "kafka": 0.0}
        self.errors: list[str] = []
        self._stop = threading.Event()
        steps = {
            "http": lambda: self._health(http_port),
            "probe": lambda: self._health(probe_port),
            "kafka": self._produce,
        }
        self._producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "log_level": 0})
        self._threads = [threading.Thread(target=self._run, args=one) for one in steps.items()]

    def __enter__(self) -> "OtherClients":
        self._produce()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, step: Callable[[], None]) -> None:
        while not self._stop.wait(0.05):
            start_s = time.monotonic()
            try:
                step()
            except Exception as error:
                self.errors.append(f"{name}: {error!r}")
            self.slowest_s[name] = max(self.slowest_s[name], time.monotonic() - start_s)

    def _health(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        finally:
            connection.close()

    def _produce(self) -> None:
        errors: list[Any] = []
        self._producer.produce("good", b"x", partition=0, on_delivery=lambda error, _: errors.append(error))
        self._producer.flush(30)
        assert errors == [None], errors


class MemoryGrowth:
    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._start_bytes = broker.rss_bytes()
        self.bytes_max = 0

    async def watch(self) -> None:
        while True:
            with suppress(FileNotFoundError, IndexError):  # a process of the group has just ended
                self.bytes_max = max(self.bytes_max, self._broker.rss_bytes() - self._start_bytes)
            await asyncio.sleep(0.1)


async def call(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = Connection(port)
    try:
        await connection.send(Sent(method, path, b"" if body is None else to_json(body)).encoded())
        status, content = await connection.response(method)
    finally:
        connection.close()
    assert status in (200, 204), (status, content[:500])
    return json.loads(content) if content else None


async def use_normally(port: int) -> None:
    """Creates a table, commits, loads, drops and registers it, and registers a schema."""
    await call(port, "POST", "/v1/namespaces", {"namespace": ["normal"]})
    created = await call(port, "POST", "/v1/namespaces/normal/tables", {"name": "t", "schema": SCHEMA})
    path = "/v1/namespaces/normal/tables/t"
    update = {"action": "set-properties", "updates": {"a": "b"}}
    requirement = {"type": "assert-table-uuid", "uuid": created["metadata"]["table-uuid"]}
    await call(port, "POST", path, {"requirements": [requirement], "updates": [update]})
    loaded = await call(port, "GET", path)
    assert loaded["metadata"]["properties"]["a"] == "b"
    await call(port, "DELETE", path)
    file = {"name": "back", "metadata-location": loaded["metadata-location"]}
    await call(port, "POST", "/v1/namespaces/normal/register", file)
    await call(port, "GET", "/v1/namespaces/normal/tables/back?snapshots=refs")
    schema = {"schema": '{"type":"record","name":"N","fields":[{"name":"a","type":"int"}]}'}
    await call(port, "PUT", "/mode/normal?force=true", {"mode": "READWRITE"})
    registered = await call(port, "POST", "/subjects/normal/versions", schema)
    assert (await call(port, "GET", f"/schemas/ids/{registered['id']}"))["schema"]


async def check_with_doctor(cluster: BrokerProcesses, folder: Path) -> None:
    stores = ["--data-dir", str(folder / "data"), "--storage", cluster.storage, "--topic", "good"]
    assert await asyncio.to_thread(main, ["doctor", *stores]) == 0


@pytest.mark.filterwarnings("ignore:unclosed|loop is closed:ResourceWarning")
@pytest.mark.timeout(120 + RUN_S_MAX)
async def test_server_rejects_damaged_requests_and_serves_other_clients(tmp_path: Path) -> None:
    print(f"\nFUZZ_SEED={SEED}")
    probe_port = free_port()
    async with brokers(tmp_path, options=["--probe", f"127.0.0.1:{probe_port}"]) as cluster:
        broker = cluster[0]
        found = re.search(r"HTTP\s+http://127\.0\.0\.1:(\d+)", broker.log())
        assert found is not None, broker.log()
        port = int(found[1])
        client = Confluent(cluster.bootstrap)
        for topic in ("good", "fuzzed"):
            await asyncio.to_thread(client.create_topic, topic)
            await asyncio.to_thread(client.produce, topic, sample_records(0, 20))
        await asyncio.to_thread(move, cluster)
        processes = children(broker.pid)
        growth, counts = MemoryGrowth(broker), Counts()
        watching = asyncio.create_task(growth.watch())
        with OtherClients(broker, port, probe_port) as others:
            start_s = time.monotonic()
            await fuzz(port, tmp_path / "bucket", counts, start_s)
            took_s = time.monotonic() - start_s
        watching.cancel()
        logs = cluster.logs()
        print(
            f"{counts.sent} requests in {took_s:.0f} s, {counts.sent / took_s:.0f}/s, {counts.raw} raw,"
            f" {counts.parsed} passed the parser, {counts.closed} connections closed\n"
            f"statuses {dict(sorted(counts.statuses.items()))}\n"
            f"slowest {counts.slowest_s:.2f} s: {counts.slowest!r}\n"
            f"other clients {others.slowest_s} {others.errors[:3]}\n"
            f"{growth.bytes_max / MiB:.0f} MiB more"
        )
        assert counts.failures == [], f"{counts.failures[0]}\n{logs[-6_000:]}"
        assert "Traceback" not in logs, logs[logs.index("Traceback") - 500 :][:6_000]
        assert broker.is_running
        assert children(broker.pid) == processes, logs[-6_000:]
        assert counts.sent >= REQUESTS_MIN
        assert counts.parsed > counts.sent / 2
        assert counts.slowest_s < RESPONSE_S_MAX
        assert others.errors == []
        assert others.slowest_s["http"] < HEALTH_S_MAX
        assert others.slowest_s["probe"] < HEALTH_S_MAX
        assert others.slowest_s["kafka"] < PRODUCE_S_MAX
        assert growth.bytes_max < GROWTH_BYTES_MAX
        await use_normally(port)
        await check_with_doctor(cluster, tmp_path)
        assert broker.stop() == 0


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


async def fuzz(port: int, bucket: Path, counts: Counts, start_s: float) -> None:
    def is_over() -> bool:
        took_s = time.monotonic() - start_s
        return took_s > RUN_S_MAX or (took_s > FUZZ_S and counts.sent >= REQUESTS_MIN)

    rng = random.Random(SEED)
    async with asyncio.TaskGroup() as tasks:
        for number in range(CATALOG_CLIENTS):
            own = random.Random(rng.getrandbits(64))
            files = TableFiles(bucket, own)
            catalog = CatalogRequests(number, own, files, bucket.as_uri(), "/v1/namespaces/default/tables/fuzzed")
            tasks.create_task(send_requests(port, started(catalog), counts, is_over))
        for number in range(REGISTRY_CLIENTS):
            registry = RegistryRequests(number, random.Random(rng.getrandbits(64)))
            tasks.create_task(send_requests(port, registry.next, counts, is_over))
        for _ in range(RAW_CLIENTS):
            tasks.create_task(send_raw(port, random.Random(rng.getrandbits(64)), counts, is_over))
        for _ in range(SLOW_CLIENTS):
            tasks.create_task(send_slowly(port, random.Random(rng.getrandbits(64)), is_over))


def started(catalog: CatalogRequests) -> Callable[[], Sent]:
    """Returns the function that makes requests; the first one creates their namespace."""
    first = [catalog.first()]
    return lambda: first.pop() if first else catalog.next()
