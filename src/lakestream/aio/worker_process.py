"""A child process that handles requests, one at a time.

    WorkerProcess  ──  length · request  ──▶  worker_loop.py  ──  length · response  ──▶

For work on clients' data that may never finish, use all memory or crash: a thread could not be stopped. Also for work
that holds the GIL for long. The process is started for the first request, and restarted for the next request after it
has ended. It exits when the broker has exited, because its stdin ends then; some modules also after an idle time.

Each process has its own folder for temporary files (TMPDIR) inside the broker's. Files that the process or its children
leave there are removed after it has ended. The process and its children are one process group, which is killed as a
whole.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lakestream.aio.worker_loop import LENGTH, OUT_OF_MEMORY
from lakestream.errors import Unavailable
from lakestream.model import Buffer, KiB

log = logging.getLogger(__name__)

EXIT_WAIT_S: Final = 2.0
PIECE_BYTES: Final = 256 * KiB
"""Of a request, written at once: the event loop copies them."""
CRASHES: Final = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
INHERITED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Variables that Python may need to start. A worker gets no credentials."""


class RequestFailed(Exception):
    """The process ended because of the request, and a retry would end it too. The text is "takes longer than 2 s"."""


class WorkerProcess:
    def __init__(self, name: str, module: str, cpu_s_max: float) -> None:
        """`name` appears in messages. `module` calls `worker_loop.serve` as __main__. `cpu_s_max` is per request."""
        self.name = name
        self.command: tuple[str, ...] = (sys.executable, "-P", "-m", module)
        self.cpu_s_max = cpu_s_max
        self.process: Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._started = 0
        self._responses = 0
        """From the current process."""

    async def call(self, request: Callable[[int], Buffer]) -> bytes:
        """Returns the response to a request, after those of earlier callers. Cancelling the caller ends the process.

        `request` is called with the number of the process that will receive it: a new process has no state of requests
        to an earlier one. Raises RequestFailed if the process ended because of the request, Unavailable if it cannot be
        started or ended for another reason.
        """
        async with self._lock:
            while True:
                response = await self._try_call(request)
                if response is not None:
                    return response

    async def close(self) -> None:
        """Ends the process immediately. Pending callers get Unavailable."""
        self._is_closed = True
        await self._end()

    async def _try_call(self, request: Callable[[int], Buffer]) -> bytes | None:
        """Returns None to retry: the process was idle and ended before it read this request, or it ran out of memory,
        maybe because of data of earlier requests."""
        try:
            response = await self._exchange(request)
        except (EOFError, ConnectionError):
            responses = self._responses
            code = await self._end(EXIT_WAIT_S)
            if code == 0 and responses:
                return None
            log.warning("worker_process.exited name=%r code=%d", self.name, code)
            if code == OUT_OF_MEMORY and responses:
                return None
            raise self._failure(code) from None
        except BaseException:
            await asyncio.shield(self._end())  # the rest of this response must not be read as the next one
            raise
        self._responses += 1
        return response

    def _failure(self, code: int) -> Exception:
        if code == -signal.SIGPROF:
            return RequestFailed(f"takes longer than {self.cpu_s_max:g} s")
        if code == OUT_OF_MEMORY:
            return RequestFailed("takes more memory than its limit")
        if -code in CRASHES:
            return RequestFailed(f"ended with {signal.Signals(-code).name}")
        return Unavailable(f"{self.name} exited with code {code}: retry")

    async def _exchange(self, request: Callable[[int], Buffer]) -> bytes:
        process = await self._running_process()
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        body = memoryview(request(self._started))
        stdin.writelines((LENGTH.pack(len(body)), body[:PIECE_BYTES]))
        await stdin.drain()
        for start in range(PIECE_BYTES, len(body), PIECE_BYTES):
            stdin.write(body[start : start + PIECE_BYTES])
            await stdin.drain()
        return await stdout.readexactly(LENGTH.unpack(await stdout.readexactly(LENGTH.size))[0])

    async def _running_process(self) -> Process:
        if self.process is not None and self.process.returncode is not None:
            await self._end()  # it exited between two requests
        if self.process is None:
            self._check_open()
            env = {name: os.environ[name] for name in INHERITED if name in os.environ}
            command = *self.command, str(self.cpu_s_max)
            try:
                self._folder = tempfile.TemporaryDirectory(prefix="lakestream-worker-", ignore_cleanup_errors=True)
                env["TMPDIR"] = self._folder.name
                self.process = await asyncio.create_subprocess_exec(
                    *command, stdin=PIPE, stdout=PIPE, env=env, start_new_session=True
                )
            except OSError as error:
                raise Unavailable(f"{self.name} cannot be started ({error}): retry") from error
            self._started += 1
            self._responses = 0
            self._check_open()
        return self.process

    def _check_open(self) -> None:
        if self._is_closed:
            raise Unavailable(f"{self.name} is closed: the broker is stopping")

    async def _end(self, wait_s: float = 0.0) -> int:
        """Ends the process and returns its exit code. `wait_s`: time for the process to exit before it is killed."""
        process, self.process = self.process, None
        folder, self._folder = self._folder, None
        try:
            return 0 if process is None else await _wait_or_kill(process, wait_s)
        finally:
            if folder is not None:
                folder.cleanup()


async def _wait_or_kill(process: Process, wait_s: float) -> int:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(wait_s):
            return await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return await process.wait()
