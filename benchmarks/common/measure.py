"""What a piece of work cost: seconds, CPU of our processes, and the CPU that others used meanwhile.

Machines are shared. A run during which others took more than a quarter of a core is set aside and repeated, a bounded
number of times; if none is quiet, the noisy ones count and the result says so.
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
_LOOK_S: Final = 0.25


@dataclass(slots=True)
class Cost:
    """Filled in when the `measured` block is left."""

    seconds: float = 0.0
    cpu_s: float = 0.0  # this process with all its threads, or the server that was asked about
    foreign_cores: float = 0.0  # everything on the machine that is neither this process nor one that it started

    @property
    def is_quiet(self) -> bool:
        return self.foreign_cores <= FOREIGN_CORES_MAX


@contextmanager
def measured(*servers: int) -> Iterator[Cost]:
    """CPU is this process's, or that of the servers with these process ids and all that they started."""
    cost = Cost()
    ours, theirs = Family(os.getpid()), Family(*servers)
    with _followed(ours, theirs):
        machine_s, cpu_s, start_s = _machine_cpu_s(), time.process_time(), time.perf_counter()
        try:
            yield cost
        finally:
            cost.seconds = time.perf_counter() - start_s
            own_s = time.process_time() - cpu_s
            machine_s = _machine_cpu_s() - machine_s
    cost.cpu_s = theirs.cpu_s if servers else own_s
    cost.foreign_cores = max(0.0, machine_s - ours.cpu_s) / cost.seconds


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


R = TypeVar("R", bound=Run)
Work = Callable[[], Awaitable[Run]]


async def in_turns(ours: Work, peer: Work, times: int) -> Pairs:
    """`times` pairs, by turns. The first pair only warms up."""
    await ours(), await peer()
    rounds, quiet = await by_turns((ours, peer), times)
    return Pairs([our for our, _ in rounds], [theirs for _, theirs in rounds], quiet)


async def alone(work: Work, times: int) -> tuple[list[Run], bool]:
    """The same without a peer: the runs, and whether all were quiet."""
    rounds, quiet = await by_turns((work,), times)
    return [run for (run,) in rounds], quiet


async def by_turns(
    works: Sequence[Callable[[], Awaitable[R]]], times: int, tries: int = 0
) -> tuple[list[tuple[R, ...]], bool]:
    """`times` rounds of all of them, quiet ones if `tries` (twice as many) give them; whether all were quiet."""
    rounds: list[tuple[R, ...]] = []
    for _ in range(tries or 2 * times):
        rounds.append(tuple([await work() for work in works]))
        if sum(map(_is_quiet, rounds)) == times:
            break
    quiet = [runs for runs in rounds if _is_quiet(runs)]
    return (quiet, True) if len(quiet) == times else (sorted(rounds, key=_foreign)[:times], False)


def median(runs: Iterable[R], of: Callable[[R], float]) -> float:
    return statistics.median(map(of, runs))


def percentile(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def evict(folder: Path) -> None:
    """Drop the files under a folder from the page cache, so that no run inherits another's."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # a server removes its own files meanwhile
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


def stored_bytes(folder: Path) -> int:
    """What the files under a folder take on the disk. Holes take nothing."""
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
    """This process and all that descend from it."""
    parents = {pid: int(fields[1]) for pid, fields in _processes().items()}
    return [pid for pid in parents if _descends(pid, ancestor, parents)]


class Ticks(NamedTuple):
    """User and system time of a process, and of those of its children that have ended and that it has waited for."""

    own: int
    waited_for: int


class Family:
    """The CPU of some processes and all that descend from them, since this was made.

    The time of a child that has ended is its parent's from then on, unless the parent does not care for its children,
    as the process does from which Spark forks its Python workers. So we look again and again, and keep what was lost.
    """

    def __init__(self, *ancestors: int) -> None:
        self._ancestors = ancestors
        self._lost = 0
        self._last = self._seen(_processes())
        self._start = _total(self._last)

    @property
    def cpu_s(self) -> float:
        """Up to the last look."""
        return _TICK_S * (_total(self._last) + self._lost - self._start)

    def look(self, processes: Mapping[int, list[str]]) -> None:
        before, self._last = self._last, self._seen(processes)
        ended = sum(sum(ticks) for name, ticks in before.items() if name not in self._last)
        inherited = sum(
            ticks.waited_for - before[name].waited_for for name, ticks in self._last.items() if name in before
        )
        self._lost += max(0, ended - inherited)

    def _seen(self, processes: Mapping[int, list[str]]) -> dict[tuple[int, str], Ticks]:
        """By process id and the time of its start: ids come again."""
        parents = {pid: int(fields[1]) for pid, fields in processes.items()}
        return {
            (pid, fields[19]): Ticks(int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14]))
            for pid, fields in processes.items()
            if any(_descends(pid, ancestor, parents) for ancestor in self._ancestors)
        }


@contextmanager
def _followed(*families: Family) -> Iterator[None]:
    """Looked at all the while, and at the end."""
    done = threading.Event()

    def look() -> None:
        processes = _processes()
        for one in families:
            one.look(processes)

    def follow() -> None:
        while not done.wait(_LOOK_S):
            look()

    thread = threading.Thread(target=follow, name="bench.families", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        look()


def _total(seen: Mapping[tuple[int, str], Ticks]) -> int:
    return sum(map(sum, seen.values()))


def _is_quiet(runs: Sequence[Run]) -> bool:
    return all(run.cost.is_quiet for run in runs)


def _foreign(runs: Sequence[Run]) -> float:
    return sum(run.cost.foreign_cores for run in runs)


def _machine_cpu_s() -> float:
    """Of all processes and of the kernel itself, besides waiting."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) * _TICK_S


def _processes() -> dict[int, list[str]]:
    """By id, the fields of their `stat` from the third on."""
    found: dict[int, list[str]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):  # gone meanwhile
                found[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return found


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents and pid != ancestor:
        pid = parents[pid]
    return pid == ancestor
