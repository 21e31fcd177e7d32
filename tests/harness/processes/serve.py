"""`lakestream serve` and other commands as processes, for tests that use them like a user."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

from lakestream.testing.processes import free_port, listens

COMMAND = [sys.executable, "-m", "lakestream"]
WAIT_S = 30.0


class Server:
    """Process of `lakestream serve`, and its output."""

    def __init__(self, folder: Path, *flags: str, kafka: int = 0, http: str = "") -> None:
        self.kafka = kafka or free_port()
        self.http = http or f"127.0.0.1:{free_port()}"
        self._out = folder / f"serve-{time.monotonic_ns()}.log"
        options = ["--data-dir", str(folder / "data"), "--kafka", f"127.0.0.1:{self.kafka}", "--http", self.http]
        options += ["--pipeline", "no"]  # the flags of a test can enable it
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *options, *flags], stdout=out, stderr=out, env=environment(), start_new_session=True
            )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka}"

    def output(self) -> str:
        return self._out.read_text()

    def wait_ready(self) -> None:
        wait_until(lambda: "\nready" in self.output() or self.process.poll() is not None)
        assert "\nready" in self.output(), self.output()

    def wait_ended(self) -> int:
        return self.process.wait(WAIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()

    def children(self) -> list[int]:
        """Returns the processes of the brokers, then that of HTTP."""
        return children_of(self.process.pid)

    def pipeline(self) -> int:
        """Returns the process of the pipeline's driver."""
        (found,) = [
            pid
            for pid in children_of(self.children()[0])
            if b"\0pipeline\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        return found

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def post(self, path: str, body: object, **headers: str) -> HTTPResponse:
        return self.send("POST", path, body, **headers)

    def send(self, method: str, path: str, body: object = None, **headers: str) -> HTTPResponse:
        """Sends a request with exactly these headers, on a connection of its own."""
        host, port = self.http.split(":")
        connection = HTTPConnection(host, int(port), timeout=WAIT_S)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, None if body is None else json.dumps(body), names)
        with closing(connection), connection.getresponse() as response:
            response.read()
            return response

    def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples with these labels."""
        label_texts = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in label_texts))


@contextmanager
def serving(folder: Path, *flags: str, kafka: int = 0, http: str = "") -> Iterator[Server]:
    server = Server(folder, *flags, kafka=kafka, http=http)
    try:
        server.wait_ready()
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def two_free_ports() -> int:
    """Returns the first of two consecutive free ports."""
    while True:
        port = free_port()
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port + 1))
            return port


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LAKESTREAM_")}


def cli(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, timeout=WAIT_S, check=False, env=environment()
    )


def output_of(*arguments: str, stdin: bytes = b"") -> str:
    """Runs a command that must succeed; returns its output."""
    ended = cli(*arguments, stdin=stdin)
    assert (ended.returncode, ended.stderr) == (0, b""), ended
    return ended.stdout.decode()


def error_of(*arguments: str, code: int = 1, stdin: bytes = b"") -> str:
    """Runs a command that must fail; returns its error message, which must be one line."""
    ended = cli(*arguments, stdin=stdin)
    assert ended.returncode == code, ended
    error = ended.stderr.decode()
    assert error.startswith("lakestream: "), error
    assert error.count("\n") == 1, error
    return error


def wait_until(condition: Callable[[], object], wait_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < deadline_s, f"the condition was not met within {wait_s:.0f} s"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    """Returns whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def wait_until_closed(port: int) -> None:
    """Waits until no process listens on a port."""
    async with asyncio.timeout(10):
        while await listens(port):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
