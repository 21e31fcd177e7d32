"""The pipeline of `lakestream serve`: a child process that is started, supervised, restarted and stopped.

Brokers serve Kafka clients independently of it. Without Java one log line reports that it waits, and it starts once
Java is installed. It reads a pipe from this process, so it ends when this process ends, even by SIGKILL.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from lakestream.aio.backoff import Backoff
from lakestream.cli.exit_status import exit_reason
from lakestream.config.settings import Settings
from lakestream.errors import Misconfigured
from lakestream.pipeline.spark.java import find_java

log = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""After a run of this length, the back-off starts again at its minimum."""
JAVA_RETRY_S: Final = 10.0
STOP_S_MAX: Final = 20.0


@asynccontextmanager
async def pipeline_child(settings: Settings | None) -> AsyncIterator[None]:
    """Runs a pipeline process until the end of the block; no pipeline if `settings` is None."""
    if settings is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(PipelineProcess(command_of(settings)).run(), name="serve.pipeline")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pipeline.supervision_failed error=%s", error)


def command_of(settings: Settings) -> list[str]:
    """Returns the child's command, with the settings of both as flags: these override environment and file."""
    own = ["--interval", f"{settings.interval_ms}ms", "--master", settings.master]
    return [sys.executable, "-m", "lakestream", "pipeline", *settings.store_flags, *own]


class PipelineProcess:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, STEADY_S)

    async def run(self) -> None:
        """Runs the process, and restarts it when it ends, until cancelled."""
        loop = asyncio.get_running_loop()
        await self._wait_for_java()
        while True:
            started_s = loop.time()
            code = await self._once()
            wait_s = self._backoff.failed(loop.time() - started_s)
            log.warning("pipeline.ended %s restart_in=%.1fs", exit_reason(code), wait_s)
            await asyncio.sleep(wait_s)

    async def _wait_for_java(self) -> None:
        is_logged = False
        while True:
            try:
                await asyncio.to_thread(find_java, os.environ)
            except Misconfigured as error:
                if not is_logged:
                    log.warning("pipeline.waiting_for_java error=%s: brokers run, tables wait for Java", error)
                is_logged = True
                await asyncio.sleep(JAVA_RETRY_S)
            else:
                return

    async def _once(self) -> int:
        """Runs the process once and returns its exit code."""
        read_end, write_end = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command, "--parent", str(read_end), stdin=asyncio.subprocess.DEVNULL, pass_fds=[read_end]
                )
            finally:
                os.close(read_end)
            try:
                return await process.wait()
            finally:
                await _end(process)
        finally:
            os.close(write_end)


async def _end(process: Process) -> None:
    """Stops a process with SIGTERM, and with SIGKILL after STOP_S_MAX."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        log.warning("pipeline.killed after_s=%.0f: it did not stop in time", STOP_S_MAX)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
