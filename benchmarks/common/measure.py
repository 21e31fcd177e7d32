"""Measures the cost of work: seconds, CPU of the measured processes, and CPU of all other processes.

Machines are shared. A run during which other processes used more than a quarter of a core is discarded and repeated, a
bounded number of times. If too few runs are quiet, the least noisy runs are used, and the result is marked.
"""

import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from lakestream.model import MiB

FOREIGN_CORES_MAX: Final = 0.25
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_SAMPLE_S: Final = 0.25


@dataclass(slots=True)
class Cost:
    """Cost of a `measured` block, set at its end."""

    seconds: float = 0.0
    cpu_s: float = 0.0  # this process with all its threads, or the given server
    foreign_cores: float = 0.0  # all processes except this one and its descendants

    @property
    def is_quiet(self) -> bool:
        return self.foreign_cores <= FOREIGN_CORES_MAX


@contextmanager
def measured(*servers: int) -> Iterator[Cost]:
    """Measures a block. CPU is that of this process, or of the servers with the given ids and their descendants."""
    cost = Cost()
    own, measured_servers = Family(os.getpid()), Family(*servers)
    with _sampled(own, measured_servers):
        machine_s, cpu_s, start_s = _machine_cpu_s(), time.process_time(), time.perf_counter()
        try:
            yield cost
        finally:
            cost.seconds = time.perf_counter() - start_s
            own_s = time.process_time() - cpu_s
            machine_s = _machine_cpu_s() - machine_s
    cost.cpu_s = measured_servers.cpu_s if servers else own_s
    cost.foreign_cores = max(0.0, machine_s - own.cpu_s) / cost.seconds


@dataclass(frozen=True, slots=True)
class Run:
    """Measured run over an amount of bytes, records or requests."""

    amount: int
    cost: Cost

    @property
    def per_s(self) -> float:
        return self.amount / self.cost.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cost.cpu_s / self.amount * 1e9


@dataclass(frozen=True, slots=True)
class Pairs:
    """Runs of Lakestream and of its peer, which took turns."""

    ours: list[Run]
    peers: list[Run]
    quiet: bool

    @property
    def ratio(self) -> float:
        """Returns the ratio of the throughput of Lakestream to that of the peer: the median over the pairs."""
        return statistics.median(run.per_s / peer.per_s for run, peer in zip(self.ours, self.peers, strict=True))


R = TypeVar("R", bound=Run)
Work = Callable[[], Awaitable[Run]]


async def run_pairs(ours: Work, peer: Work, times: int) -> Pairs:
    """Runs `times` pairs, after one pair to warm up."""
    await ours(), await peer()
    rounds, quiet = await run_in_turns((ours, peer), times)
    return Pairs([run for run, _ in rounds], [run for _, run in rounds], quiet)


async def run_alone(work: Work, times: int) -> tuple[list[Run], bool]:
    """Runs work without a peer. Returns the runs, and whether all were quiet."""
    rounds, quiet = await run_in_turns((work,), times)
    return [run for (run,) in rounds], quiet


async def run_in_turns(
    works: Sequence[Callable[[], Awaitable[R]]], times: int, attempts: int = 0
) -> tuple[list[tuple[R, ...]], bool]:
    """Runs all works in turns until `times` rounds were quiet, at most `attempts` times (default: twice `times`).

    Returns `times` rounds, and whether all were quiet."""
    rounds: list[tuple[R, ...]] = []
    for _ in range(attempts or 2 * times):
        rounds.append(tuple([await work() for work in works]))
        if sum(map(_is_quiet, rounds)) == times:
            break
    quiet = [runs for runs in rounds if _is_quiet(runs)]
    return (quiet, True) if len(quiet) == times else (sorted(rounds, key=_foreign_cores)[:times], False)


def median(runs: Iterable[R], of: Callable[[R], float]) -> float:
    return statistics.median(map(of, runs))


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def evict(folder: Path) -> None:
    """Drops the files under a folder from the page cache, so that a run does not read pages cached by another run."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # the server may delete its files at the same time
                if path.is_file():  # not a socket
                    _evict_file(path)


def _evict_file(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(file)  # dirty pages are not dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def warm_memory(folder: Path, size: int) -> None:
    """Fills memory with page cache and frees it again.

    A virtual machine returns free memory to its host after some seconds, and the next write requests it again: 1 to 2 s
    of CPU per GB on some machines, five times the cost of the write itself. So this is called before each run.
    """
    file = os.open(folder, os.O_TMPFILE | os.O_WRONLY)
    try:
        zeros, written = [bytes(MiB)] * 8, 0
        while written < size:
            written += os.writev(file, zeros)
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def stored_bytes(folder: Path) -> int:
    """Returns the disk space of the files under a folder, without holes."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                total += 512 * Path(parent, name).lstat().st_blocks
    return total


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def family(ancestor: int) -> list[int]:
    """Returns a process and all its descendants."""
    parents = {pid: int(fields[1]) for pid, fields in _processes().items()}
    return [pid for pid in parents if _descends(pid, ancestor, parents)]


class Ticks(NamedTuple):
    """User and system time of a process, and of the ended children that it has waited for."""

    own: int
    waited_for: int


class Family:
    """CPU time of processes and all their descendants, from the creation of this object.

    The kernel adds the time of an ended child to its parent, unless the parent ignores SIGCHLD, as the process does
    from which Spark forks its Python workers. So the processes are sampled continuously, and the time that would be
    lost is added."""

    def __init__(self, *ancestors: int) -> None:
        self._ancestors = ancestors
        self._lost = 0
        self._last = self._ticks_by_process(_processes())
        self._start = _total(self._last)

    @property
    def cpu_s(self) -> float:
        """The CPU time up to the last sample."""
        return _TICK_S * (_total(self._last) + self._lost - self._start)

    def sample(self, processes: Mapping[int, list[str]]) -> None:
        before, self._last = self._last, self._ticks_by_process(processes)
        ended = sum(sum(ticks) for name, ticks in before.items() if name not in self._last)
        inherited = sum(
            ticks.waited_for - before[name].waited_for for name, ticks in self._last.items() if name in before
        )
        self._lost += max(0, ended - inherited)

    def _ticks_by_process(self, processes: Mapping[int, list[str]]) -> dict[tuple[int, str], Ticks]:
        """Returns the ticks by process id and start time, because ids are reused."""
        parents = {pid: int(fields[1]) for pid, fields in processes.items()}
        return {
            (pid, fields[19]): Ticks(int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))
            for pid, fields in processes.items()
            if any(_descends(pid, ancestor, parents) for ancestor in self._ancestors)
        }


@contextmanager
def _sampled(*families: Family) -> Iterator[None]:
    """Samples the families continuously, and once more at the end."""
    done = threading.Event()

    def sample() -> None:
        processes = _processes()
        for family in families:
            family.sample(processes)

    def sample_until_done() -> None:
        while not done.wait(_SAMPLE_S):
            sample()

    thread = threading.Thread(target=sample_until_done, name="bench.families", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        sample()


def _total(ticks: Mapping[tuple[int, str], Ticks]) -> int:
    return sum(map(sum, ticks.values()))


def _is_quiet(runs: Sequence[Run]) -> bool:
    return all(run.cost.is_quiet for run in runs)


def _foreign_cores(runs: Sequence[Run]) -> float:
    return sum(run.cost.foreign_cores for run in runs)


def _machine_cpu_s() -> float:
    """Returns the CPU time of all processes and the kernel, without idle time."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _processes() -> dict[int, list[str]]:
    """Returns, by process id, the fields of `/proc/<id>/stat` from the third on."""
    fields: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # the process has ended
                fields[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return fields


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
