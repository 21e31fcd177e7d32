"""Lakestream's own API under /api/v1, for its commands.

    GET  /api/v1/cluster     the addresses of the Kafka brokers
    POST /api/v1/commands    runs a command that needs the stores, and returns its output line by line

The command runs in a process of its own, with the stores of this server: its work does not delay other clients, and it
ends when the client disconnects.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from lakestream.errors import Conflict, Missing, Rejected, Unavailable
from lakestream.metadata.brokers import Broker
from lakestream.model import KiB, MiB
from lakestream.protocol.rest.request_body import BodyTooLarge, read_json
from lakestream.protocol.rest.router import Endpoint, ErrorTable, NotServed, RestApi, RestCall, WrongMethod, split_path
from lakestream.protocol.rest.server import PATIENT

ROOT: Final = "/api/v1"
COMMANDS: Final = (
    ("doctor",),
    ("table", "dead-letters"),
    ("table", "repair"),
    ("table", "register"),
    ("table", "accept-rollback"),
    ("table", "set-next-offsets"),
)
"""Commands that open the stores."""
OPTIONS_NOT_SENT: Final = (
    "--data-dir",
    "--metadata",
    "--storage",
    "--wal-dir",
    "--profile",
    "--config",
    "--server",
    "--parent-process",
)
"""The server's own are used."""
COMMANDS_MAX: Final = 4
"""Commands that run at the same time."""
WORDS_MAX: Final = 1_000
WORD_CHARACTERS_MAX: Final = 4 * KiB
LINE_BYTES_MAX: Final = MiB
OUTPUT_LINES_MAX: Final = 16
"""Lines that wait for a client that reads slowly; then the command waits."""
END_S_MAX: Final = 5.0

_encode: Final = msgspec.json.Encoder().encode


class ClusterInfo(msgspec.Struct, frozen=True):
    cluster_id: str
    version: str
    brokers: list[Broker]


class Command(msgspec.Struct, frozen=True):
    words: list[str]
    """The command line, as ["table", "repair", "orders"]."""


Cluster = Callable[[], Awaitable[ClusterInfo]]


def _error_response(status: int, code: int, message: str) -> Response:
    return Response(_encode({"error": message}), status, media_type="application/json")


_ERRORS: Final = ErrorTable(
    (
        (BodyTooLarge, 413, 413),
        (WrongMethod, 405, 405),
        (NotServed, 404, 404),
        (Missing, 404, 404),
        (Rejected, 400, 400),
        (Conflict, 409, 409),
        (Unavailable, 503, 503),
    ),
    500,
    _error_response,
)


class LakestreamApi(RestApi[RestCall]):
    def __init__(self, cluster: Cluster, program: Sequence[str], store_flags: Sequence[str]) -> None:
        """`program`: starts `lakestream`. `store_flags`: options that name the stores of this server."""
        self._cluster = cluster
        self._program = program
        self._store_flags = store_flags
        self._runs: set[_CommandRun] = set()
        endpoints = [
            Endpoint("GET", "/api/v1/cluster", self._show_cluster),
            Endpoint("POST", "/api/v1/commands", self._run_command),
        ]
        super().__init__("api", endpoints, _ERRORS)

    async def dispatch(self, request: Request) -> Response:
        endpoint, args = self.find(request, request.method, split_path(request.url.path))
        return await endpoint.handler(RestCall(request, args))

    async def _show_cluster(self, call: RestCall) -> Response:
        return Response(_encode(await self._cluster()), media_type="application/json")

    async def close(self) -> None:
        """Ends all commands."""
        await asyncio.gather(*(run.close() for run in list(self._runs)))

    async def _run_command(self, call: RestCall) -> Response:
        words = checked((await read_json(call.request, Command)).words)
        if len(self._runs) >= COMMANDS_MAX:
            raise Unavailable(f"{len(self._runs)} commands are running, which is the maximum: retry")
        call.request.scope[PATIENT] = True  # a pager may read the output slowly
        ends_with_server = ["--parent-process", str(os.getpid())]
        run = _CommandRun([*self._program, *words, *self._store_flags, *ends_with_server])
        self._runs.add(run)
        run.task.add_done_callback(lambda _: self._runs.discard(run))
        return _CommandOutput(run)


class _CommandRun:
    """A command that runs in a process until it ends, or until nothing reads its output any more."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(OUTPUT_LINES_MAX)
        self.task = asyncio.get_running_loop().create_task(self._run(), name="api.command")

    def abandon(self) -> None:
        self.task.cancel()

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def lines(self) -> AsyncIterator[bytes]:
        """Yields the lines that the command prints, and its exit code."""
        while (line := await self._lines.get()) is not None:
            yield line

    async def _run(self) -> None:
        try:
            await self._lines.put(_encode({"exit_code": await self._exit_code()}) + b"\n")
        except OSError as error:
            await self._lines.put(_encode({"error": f"lakestream: the command cannot be started: {error}\n"}) + b"\n")
        await self._lines.put(None)

    async def _exit_code(self) -> int:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LAKESTREAM_")}
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            env=environment,
            limit=LINE_BYTES_MAX,
            start_new_session=True,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read(process.stdout, "output"))
                group.create_task(self._read(process.stderr, "error"))
            return await process.wait()
        finally:
            await _end(process)

    async def _read(self, stream: asyncio.StreamReader | None, name: str) -> None:
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:
                line, name_of_line = f"lakestream: a line has more than {LINE_BYTES_MAX} bytes\n".encode(), "error"
            else:
                name_of_line = name
            if not line:
                return
            await self._lines.put(_encode({name_of_line: line.decode("utf-8", "replace")}) + b"\n")


class _CommandOutput(StreamingResponse):
    """The output of a command, which ends when the client disconnects."""

    def __init__(self, run: _CommandRun) -> None:
        super().__init__(run.lines(), media_type="application/x-ndjson")
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._run.abandon()


def checked(words: Sequence[str]) -> Sequence[str]:
    """Returns a command line that a server runs. Rejected: it is none, or names stores."""
    if not any(tuple(words[: len(command)]) == command for command in COMMANDS):
        shown = " ".join(words[:2])[:100]
        names = ", ".join(" ".join(command) for command in COMMANDS)
        raise Rejected(f"the server does not run the command {shown!r}: it runs {names}")
    if len(words) > WORDS_MAX or any(len(word) > WORD_CHARACTERS_MAX or "\0" in word for word in words):
        raise Rejected(
            f"the command has more than {WORDS_MAX} words, or one of more than {WORD_CHARACTERS_MAX} characters"
        )
    for word in words:
        if word.partition("=")[0] in OPTIONS_NOT_SENT:
            raise Rejected(f"the server runs the command on its own stores: leave out {word.partition('=')[0]}")
    return words


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(END_S_MAX):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
