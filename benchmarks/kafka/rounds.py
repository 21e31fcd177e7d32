"""Runs the servers in turns, and compares their results."""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from benchmarks.common.environment import Stage
from benchmarks.common.measure import Run, evict, median, run_in_turns, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.common.report import figure as shown
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server


class Named(Protocol):
    """Side of the comparison: a server or a cluster."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Run)
S = TypeVar("S", bound=Named)


@dataclass(frozen=True, slots=True)
class Bench:
    """Options of the command line."""

    stage: Stage
    sides: tuple[str, ...]
    runs: int

    @property
    def attempts(self) -> int:
        """Maximum of attempts to get quiet runs; with --quick noisy runs are accepted."""
        return self.runs if self.stage.quick else 2 * self.runs

    def of(self, *names: str) -> tuple[str, ...]:
        """Returns the names among the selected sides."""
        return tuple(name for name in names if name in self.sides)

    def scaled(self, amount: int) -> int:
        return amount // 8 if self.stage.quick else amount


@dataclass(frozen=True, slots=True)
class Rounds(Generic[R]):
    by_side: dict[str, list[R]]
    quiet: bool

    def median(self, side: str, figure: Callable[[R], float]) -> float:
        return median(self.by_side[side], figure)

    def ratio(self, side: str, figure: Callable[[R], float]) -> float:
        """Returns the ratio of the figure of Lakestream to that of `side`: the median over rounds."""
        pairs = zip(self.by_side[LAKESTREAM], self.by_side[side], strict=True)
        return statistics.median(figure(ours) / figure(theirs) for ours, theirs in pairs)

    def row(
        self,
        benchmark: str,
        what: str,
        figure: Callable[[R], float],
        unit: str,
        *,
        against: str = KAFKA,
        at_least: float | None = None,
        at_most: float | None = None,
        absolute: bool = False,
        note: str = "",
    ) -> Row:
        """Returns a row whose target is for the ratio to `against`, or (`absolute`) for the figure of Lakestream.

        Without the side `against` there is no ratio, and so no target."""
        has_peer = against in self.by_side
        has_target = has_peer or absolute
        others = [side for side in self.by_side if side not in (LAKESTREAM, against)]
        figures = [f"{side}: {shown(self.median(side, figure))}" for side in others]
        return row(
            benchmark,
            what,
            self.median(LAKESTREAM, figure),
            unit,
            peer=self.median(against, figure) if has_peer else None,
            peer_is=against if has_peer else "",
            ratio=self.ratio(against, figure) if has_peer and not absolute else None,
            at_least=at_least if has_target else None,
            at_most=at_most if has_target else None,
            quiet=self.quiet,
            note="; ".join(filter(None, [note, *figures])),
        )


async def rounds(bench: Bench, servers: Sequence[S], work: Callable[[S], Awaitable[R]], warm_ups: int = 1) -> Rounds[R]:
    """Runs the work on the servers in turns, and returns the measured rounds.

    `warm_ups` rounds before are not measured, in which a JVM compiles frequent code. Without a JVM one is enough."""

    def work_on(server: S) -> Callable[[], Awaitable[R]]:
        return lambda: work(server)

    for _ in range(warm_ups if len(bench.sides) > 1 else min(warm_ups, 1)):
        for server in servers:
            await work(server)
    runs, quiet = await run_in_turns([work_on(server) for server in servers], bench.runs, bench.attempts)
    by_side = {server.name: [loads[number] for loads in runs] for number, server in enumerate(servers)}
    return Rounds(by_side, quiet)


def prepare(server: Server, folder: Path, size: int) -> None:
    """Empties the page cache, and requests memory that the machine has returned to its host."""
    evict(server.folder)
    warm_memory(folder, size)


def peak_memory(benchmark: str, what: str, servers: Sequence[Server]) -> Row:
    peaks = {server.name: server.peak_bytes() / 1e6 for server in servers}
    synced = f"{KAFKA_SYNCED}: {peaks[KAFKA_SYNCED]:,.0f}" if KAFKA_SYNCED in peaks else ""
    peer = peaks.get(KAFKA)
    return row(
        benchmark, what, peaks[LAKESTREAM], "MB", peer=peer, peer_is=KAFKA if peer is not None else "", note=synced
    )
