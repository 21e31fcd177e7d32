"""The pipeline beside `lakestream serve`: a process of its own, which is started, watched, started again, and ended.

Kafka is served whatever becomes of it. Without Java there is none: one line says so, and it comes when Java does.
A pipe ties it to this process, so it ends with it, however that ends.
"""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from lakestream.errors import Misconfigured
from lakestream.pipeline.java import find_java
from lakestream.settings import Settings

log = logging.getLogger(__name__)

BACKOFF_S_MIN: Final = 0.5
BACKOFF_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
"""One that lived so long was well; the next start comes quickly again."""
JAVA_LOOK_S: Final = 10.0
STOP_S_MAX: Final = 20.0


@asynccontextmanager
async def beside(settings: Settings | None) -> AsyncIterator[None]:
    """Runs while the block does. None: no pipeline is wanted."""
    if settings is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(Child(command_of(settings)).run(), name="serve.pipeline")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pipeline.not_looked_after error=%s", error)


def command_of(settings: Settings) -> list[str]:
    """What is the same for both is given on: both read the environment and the file, but flags beat these."""
    flags = {
        "--data-dir": str(settings.data_dir),
        "--metadata": settings.metadata,
        "--storage": settings.storage,
        "--wal-dir": str(settings.wal_dir or ""),
        "--profile": settings.profile.value if settings.profile is not None else "",
        "--interval": f"{settings.interval_ms}ms",
        "--master": settings.master,
    }
    given = [word for flag, value in flags.items() if value for word in (flag, value)]
    return [sys.executable, "-m", "lakestream", "pipeline", *given]


class Child:
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._backoff_s = BACKOFF_S_MIN

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        await self._wait_for_java()
        while True:
            begun_s = loop.time()
            code = await self._once()
            if loop.time() - begun_s >= STEADY_S:
                self._backoff_s = BACKOFF_S_MIN
            wait_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, BACKOFF_S_MAX)
            log.warning("pipeline.ended %s restart_in=%.1fs", _how(code), wait_s)
            await asyncio.sleep(wait_s)

    async def _wait_for_java(self) -> None:
        waits = False
        while True:
            try:
                await asyncio.to_thread(find_java, os.environ)
            except Misconfigured as error:
                if not waits:
                    log.warning("pipeline.waits: Kafka is served, tables wait for Java. %s", error)
                waits = True
                await asyncio.sleep(JAVA_LOOK_S)
            else:
                return

    async def _once(self) -> int:
        """Its exit code."""
        ours, its = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command, "--parent", str(ours), stdin=asyncio.subprocess.DEVNULL, pass_fds=[ours]
                )
            finally:
                os.close(ours)
            try:
                return await process.wait()
            finally:
                await _end(process)
        finally:
            os.close(its)


async def _end(process: Process) -> None:
    """Told to stop; who takes too long is killed."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_S_MAX):
            await process.wait()
    except TimeoutError:
        log.warning("pipeline.killed reason=it did not stop within %.0f s", STOP_S_MAX)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _how(code: int) -> str:
    return f"killed_by={signal.Signals(-code).name}" if code < 0 else f"exit_code={code}"
