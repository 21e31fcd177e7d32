"""External programs for tests, on free ports of 127.0.0.1. No program outlives its test.

Used by: servers.py, brokers.py. A program is killed with its process group at the end of its block, and by the kernel
when the test process is killed.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lakestream.errors import Misconfigured, Unavailable

READY_S_MAX = 60.0
STOP_S_MAX = 30.0
_POLL_S = 0.02
_LOG_END_MAX = 5_000
_DUMP_S = 1.0
_assigned_ports: set[int] = set()

# Runs first in the child: requests SIGKILL from the kernel at the parent's end (1 is PR_SET_PDEATHSIG), then executes
# the program. A preexec_fn of subprocess would do the same, but is not safe with the threads that gRPC starts.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]): os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def program(name: str) -> str:
    """Returns the path at which `make tools` installs a program."""
    cache = Path(os.environ.get("LAKESTREAM_CACHE") or Path.home() / ".cache" / "lakestream")
    path = cache / "bin" / name
    if not path.exists():
        raise Misconfigured(f"the test program {name} is not in {path.parent}: run make tools")
    return str(path)


def free_port() -> int:
    """Returns a free port outside the range of ephemeral ports.

    So a server that is killed and restarted finds its port free, however often its clients tried to reconnect."""
    ephemeral_start = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(100):
        port = random.randrange(10_000, max(ephemeral_start, 20_000))
        if port in _assigned_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _assigned_ports.add(port)
        return port
    raise Unavailable("no free port on 127.0.0.1 in a hundred tries")


class Process:
    """A program with its process group. `start` after `kill` runs the same command, ports and folder again."""

    def __init__(
        self,
        name: str,
        args: Sequence[str],
        log: Path,
        *,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`command`: replaces the program that `make tools` built. `environment`: replaces that of this process."""
        self.name = name
        self._args = [*(command or [program(name)]), *args]
        self._log = log
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._child is None, f"{self.name} runs already"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        wrapper = [sys.executable, "-ISc", _DIE_WITH_PARENT, str(os.getpid())]
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [*wrapper, *self._args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int | None:
        """Returns None if the program does not run."""
        return None if self._child is None or self._child.poll() is not None else self._child.pid

    def check_running(self) -> None:
        """Raises an error with the end of the log if the program ended without `kill` or `stop`."""
        assert self._child is None or self._child.poll() is None, (
            f"{self.name} exited with {self._child.returncode}: {self._log_end(_LOG_END_MAX)}"
        )

    def handles(self, number: signal.Signals) -> bool:
        """Returns whether the program has installed a handler of the signal. A program that still starts has none."""
        assert self.pid is not None, f"{self.name} does not run: {self._log_end()}"
        status = Path(f"/proc/{self.pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)

    def group(self) -> list[int]:
        """Returns the ids of the program's process and of all that it has started."""
        found = [] if self.pid is None else [self.pid]
        for pid in found:
            with suppress(FileNotFoundError):  # it has ended
                found += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return found

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the group. SIGSTOP makes it hang with open connections until SIGCONT."""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL and waits until all processes of the group have ended, so that their ports are free.

        Does nothing if the program does not run."""
        if self._child is None:
            return
        group = [pid for pid in self.group() if _process_group(pid) == self._child.pid]
        self.signal(signal.SIGKILL)
        self._child.wait()
        self._child = None
        deadline_s = time.monotonic() + STOP_S_MAX
        while any(map(_is_running, group)) and time.monotonic() < deadline_s:
            time.sleep(0.002)

    def stop(self, timeout_s: float = STOP_S_MAX, dump: int | None = None) -> int:
        """Sends SIGTERM and returns the exit code; after `timeout_s` sends SIGKILL, and the code is -9.

        `dump`: sent before SIGKILL, so that the program writes its state to its log."""
        assert self._child is not None, f"{self.name} does not run"
        child = self._child
        self.signal(signal.SIGTERM)
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            if dump is not None:
                self.signal(signal.Signals(dump))
                time.sleep(_DUMP_S)
        self.kill()
        return child.returncode

    async def wait_ready(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        """Waits until `is_ready`. Unavailable, with the end of the log, if the program exits or the wait times out."""
        try:
            async with asyncio.timeout(READY_S_MAX):
                while not await is_ready():
                    if self._child is None or self._child.poll() is not None:
                        raise Unavailable(f"{self.name} ended at its start: {self._log_end()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise Unavailable(f"{self.name} was not ready after {READY_S_MAX:.0f} s: {self._log_end()}") from None

    def _log_end(self, length: int = 500) -> str:
        return self._log.read_text(errors="replace")[-length:].strip() or f"{self._log} is empty"


def _process_group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _is_running(pid: int) -> bool:
    """Returns whether a process is running, or one of its threads; a zombie is not.

    The first thread of a killed process is a zombie while the others still end, and they hold its sockets."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return True
