"""`lakestream pipeline` processes and other commands on the stores of running brokers."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.harness.processes.eager_pipeline import COMMAND as EAGER

from lakestream.testing.brokers import BrokerProcesses
from lakestream.testing.processes import READY_S_MAX, Process

COMMAND: Final = [sys.executable, "-m", "lakestream"]
COMMAND_S_MAX: Final = 90.0
ENDED_S_MAX: Final = 60.0
"""A JVM ends by itself when its driver has ended, on a busy machine slowly."""
MARK: Final = "STORM_OF"
"""Environment variable of all processes of a test, and of their descendants."""


class PipelineProcess:
    """A `lakestream pipeline` process with frequent micro-batches. Number 0 also runs frequent maintenance."""

    def __init__(self, number: int, flags: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = f"pipeline-{number}"
        self._log = folder / f"{self.name}.log"
        program = [*COMMAND, "pipeline"] if number else EAGER
        command = [*program, "--interval", "1s", "--master", "local[1]"]
        self.process = Process(self.name, flags, self._log, command=command, environment=environment)
        self._log_start = 0

    async def start(self) -> None:
        self._log_start = len(self.output())
        self.process.start()

    def works(self) -> bool:
        """Returns whether the process has moved records since its last start."""
        return "pipeline.moved" in self.output()[self._log_start :]

    def kill(self) -> None:
        self.process.check_running()
        self.process.kill()

    def stop(self) -> int:
        """Stops the process when it has started so far that it can stop; returns its exit code."""
        self.process.check_running()
        deadline_s = time.monotonic() + READY_S_MAX
        while not self.process.handles(signal.SIGTERM) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return self.process.stop()

    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@dataclass(frozen=True)
class BrokersAndPipelines:
    cluster: BrokerProcesses
    pipelines: tuple[PipelineProcess, ...]
    flags: list[str]
    """Options of `lakestream` commands on the same stores."""

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Runs a `lakestream` command; returns its exit code and output."""
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *arguments, *self.flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.cluster.environment,
        )
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                output = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, output.strip()

    def logs(self) -> str:
        return self.cluster.logs() + "".join(pipeline.output() for pipeline in self.pipelines)


@asynccontextmanager
async def with_pipelines(cluster: BrokerProcesses, folder: Path, count: int = 2) -> AsyncIterator[BrokersAndPipelines]:
    """Yields pipelines that the caller starts. At the end they are killed, and all their descendants have ended."""
    environment = {**cluster.environment, MARK: str(folder)}
    flags = ["--data-dir", str(folder / "data"), "--metadata", cluster.metadata, "--storage", cluster.storage]
    pipelines = tuple(PipelineProcess(number, flags, folder, environment) for number in range(count))
    try:
        yield BrokersAndPipelines(replace(cluster, environment=environment), pipelines, flags)
    finally:
        for pipeline in pipelines:
            pipeline.process.kill()
        await asyncio.to_thread(_wait_until_ended, str(folder))


def _wait_until_ended(mark: str) -> None:
    """Waits for all processes of the test."""
    deadline_s = time.monotonic() + ENDED_S_MAX
    while running := list(_marked_processes(mark)):
        assert time.monotonic() < deadline_s, f"still running: {running}"
        time.sleep(0.1)


def _marked_processes(mark: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield f"{process.name} {(process / 'cmdline').read_bytes()[:100]!r}"
        except OSError:  # it has ended, or belongs to another user
            continue
