"""The sides by turns, and what they did held against each other."""

import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from benchmarks.common.measure import Run, by_turns, evict, median, warm_memory
from benchmarks.common.report import Row, row
from benchmarks.common.report import figure as shown
from benchmarks.common.stage import Stage
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server


class Named(Protocol):
    """A side: a server, or several that work together."""

    @property
    def name(self) -> str: ...


R = TypeVar("R", bound=Run)
S = TypeVar("S", bound=Named)


@dataclass(frozen=True, slots=True)
class Bench:
    """What the user asked for."""

    stage: Stage
    sides: tuple[str, ...]
    runs: int

    @property
    def tries(self) -> int:
        """For so many quiet runs. Who is in a hurry takes them as they come."""
        return self.runs if self.stage.quick else 2 * self.runs

    def of(self, *names: str) -> tuple[str, ...]:
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
        """Ours to theirs: the median over rounds."""
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
        in_itself: bool = False,
        note: str = "",
    ) -> Row:
        """A bar is asked of the ratio to `against`, and not at all without that side; or of our figure in itself."""
        both = against in self.by_side
        asked = both or in_itself
        others = [side for side in self.by_side if side not in (LAKESTREAM, against)]
        theirs = [f"{side}: {shown(self.median(side, figure))}" for side in others]
        return row(
            benchmark,
            what,
            self.median(LAKESTREAM, figure),
            unit,
            peer=self.median(against, figure) if both else None,
            peer_is=against if both else "",
            ratio=self.ratio(against, figure) if both and not in_itself else None,
            at_least=at_least if asked else None,
            at_most=at_most if asked else None,
            quiet=self.quiet,
            note="; ".join(filter(None, [note, *theirs])),
        )


async def rounds(bench: Bench, servers: Sequence[S], work: Callable[[S], Awaitable[R]], warm_ups: int = 1) -> Rounds[R]:
    """The first rounds only warm up: the JVM makes machine code of what it does often. Without one, once will do."""

    def one(server: S) -> Callable[[], Awaitable[R]]:
        return lambda: work(server)

    for _ in range(warm_ups if len(bench.sides) > 1 else min(warm_ups, 1)):
        for server in servers:
            await work(server)
    found, quiet = await by_turns([one(server) for server in servers], bench.runs, bench.tries)
    by_side = {server.name: [loads[number] for loads in found] for number, server in enumerate(servers)}
    return Rounds(by_side, quiet)


def prepare(server: Server, folder: Path, size: int) -> None:
    """No run inherits another's pages, and none pays for memory that the machine has given back to its host."""
    evict(server.folder)
    warm_memory(folder, size)


def peak_memory(benchmark: str, what: str, servers: Sequence[Server]) -> Row:
    peaks = {server.name: server.peak_bytes() / 1e6 for server in servers}
    synced = f"{KAFKA_SYNCED}: {peaks[KAFKA_SYNCED]:,.0f}" if KAFKA_SYNCED in peaks else ""
    peer = peaks.get(KAFKA)
    return row(
        benchmark, what, peaks[LAKESTREAM], "MB", peer=peer, peer_is=KAFKA if peer is not None else "", note=synced
    )
