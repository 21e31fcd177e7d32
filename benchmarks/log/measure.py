"""What a piece of work cost: seconds, CPU of our processes, and the CPU that others used meanwhile.

Machines are shared. A run during which others took more than a quarter of a core is set aside and repeated, a bounded
number of times; if none is quiet, the noisy ones count and the result says so.
"""

import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lakestream.model import MiB

FOREIGN_CORES_MAX: Final = 0.25
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Cost:
    """Filled in when the `measured` block is left."""

    seconds: float = 0.0
    cpu_s: float = 0.0  # this process, all its threads
    foreign_cores: float = 0.0  # everything on the machine that is neither this process nor one that it started

    @property
    def is_quiet(self) -> bool:
        return self.foreign_cores <= FOREIGN_CORES_MAX


@contextmanager
def measured() -> Iterator[Cost]:
    cost = Cost()
    machine_s, family_s = _machine_cpu_s(), _family_cpu_s()
    cpu_s, start_s = time.process_time(), time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - start_s
        cost.cpu_s = time.process_time() - cpu_s
        others_s = (_machine_cpu_s() - machine_s) - (_family_cpu_s() - family_s)
        cost.foreign_cores = max(0.0, others_s) / cost.seconds


@dataclass(frozen=True, slots=True)
class Run:
    """One timed piece of work on so many bytes (or so many things)."""

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
    """Ours and the peer's, run by turns."""

    ours: list[Run]
    peers: list[Run]
    quiet: bool

    @property
    def ratio(self) -> float:
        """Of throughput, ours to the peer's: the median of the pairs'."""
        return statistics.median(our.per_s / peer.per_s for our, peer in zip(self.ours, self.peers, strict=True))


Work = Callable[[], Awaitable[Run]]


async def in_turns(ours: Work, peer: Work, times: int) -> Pairs:
    """`times` pairs, quiet ones if they can be had with as many tries again. The first pair only warms up."""
    await ours(), await peer()
    pairs: list[tuple[Run, Run]] = []
    for _ in range(2 * times):
        pairs.append((await ours(), await peer()))
        if sum(map(_is_quiet, pairs)) == times:
            break
    quiet = [pair for pair in pairs if _is_quiet(pair)]
    chosen = quiet if len(quiet) == times else sorted(pairs, key=_foreign)[:times]
    return Pairs([our for our, _ in chosen], [theirs for _, theirs in chosen], len(quiet) == times)


async def alone(work: Work, times: int) -> tuple[list[Run], bool]:
    """The same without a peer: the runs, and whether all were quiet."""
    runs: list[Run] = []
    for _ in range(2 * times):
        runs.append(await work())
        if sum(run.cost.is_quiet for run in runs) == times:
            break
    quiet = [run for run in runs if run.cost.is_quiet]
    if len(quiet) == times:
        return quiet, True
    return sorted(runs, key=lambda run: run.cost.foreign_cores)[:times], False


def median(runs: list[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(map(of, runs))


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def evict(folder: Path) -> None:
    """Drop the files under a folder from the page cache, so that no run inherits another's."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.fdatasync(file)  # dirty pages are not dropped
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


def warm_memory(folder: Path, size: int) -> None:
    """Take so much memory for the page cache and free it again.

    A virtual machine gives free memory back to its host after some seconds, and whoever writes next pays for getting it
    again: 1 to 2 s of CPU per GB on some machines, five times what the write itself costs. So no run starts cold.
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


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _is_quiet(pair: tuple[Run, Run]) -> bool:
    return all(run.cost.is_quiet for run in pair)


def _foreign(pair: tuple[Run, Run]) -> float:
    return sum(run.cost.foreign_cores for run in pair)


def _machine_cpu_s() -> float:
    """Of all processes and of the kernel itself, besides waiting."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _family_cpu_s() -> float:
    """Of this process and all that descend from it."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        parents[int(folder.name)] = int(fields[1])
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))
    return _TICK_S * sum(ticks[pid] for pid in ticks if _descends(pid, os.getpid(), parents))


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
