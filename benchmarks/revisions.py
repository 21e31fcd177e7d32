"""Compares the working tree with an earlier revision: `python -m benchmarks.revisions REVISION [--pairs N] [LOAD …]`.

Both brokers run during the whole comparison, each in its own folder, and take turns under the same load, in alternating
order. For each figure the command prints the geometric mean of the ratios, working tree to revision, with its 95 %
confidence interval. A ratio of CPU below 1 and a ratio of throughput above 1 are better."""

import argparse
import asyncio
import itertools
import math
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.common.environment import Stage, set_up
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.load.tasks import Consume, Produce, Single
from benchmarks.kafka.loads import LoadRun, run_load
from benchmarks.kafka.servers import Server, lakestream

ROOT: Final = Path(__file__).parents[1]
PARTITIONS: Final = 8
RECORDS: Final = 250_000
TAIL: Final = 96_000
"""Fits into the memory that a broker uses for the newest records."""
CONSUMERS: Final = 10
REQUESTS: Final = 12_000
PRODUCERS: Final = 4
T_95: Final = {10: 2.262, 12: 2.201, 15: 2.145, 20: 2.093, 30: 2.045}
"""Quantiles of Student's t-distribution by number of pairs."""

Load = Callable[[Server, str], Awaitable[LoadRun]]


async def produce(server: Server, topic: str, codec: str = "none", records: int = RECORDS) -> LoadRun:
    await server.create_topics([topic], PARTITIONS)
    task = Produce(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=records, codec=codec)
    return await run_load(server, task, amount=records * SIZE)


async def produce_zstd(server: Server, topic: str) -> LoadRun:
    return await produce(server, topic, "zstd")


async def consume(server: Server, topic: str) -> LoadRun:
    await produce(server, topic, records=TAIL)
    task = Consume(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=TAIL, consumers=CONSUMERS)
    return await run_load(server, task, amount=CONSUMERS * TAIL * SIZE)


async def single(server: Server, topic: str) -> LoadRun:
    await server.create_topics([topic], PARTITIONS)
    task = Single(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=REQUESTS, producers=PRODUCERS)
    return await run_load(server, task, amount=REQUESTS)


LOADS: Final[dict[str, Load]] = {"produce": produce, "zstd": produce_zstd, "consume": consume, "single": single}


@asynccontextmanager
async def brokers(stage: Stage, revision: str) -> AsyncIterator[tuple[Server, Server]]:
    """Starts the broker of the working tree, and that of the revision from a git worktree."""
    async with AsyncExitStack() as opened:
        tree = stage.folder / "revision"
        _git("worktree", "add", "--detach", str(tree), revision)
        opened.callback(_git, "worktree", "remove", "--force", str(tree))
        started = []
        for sources in (ROOT / "src", tree / "src"):
            server = lakestream(stage.new_folder(), environment={"PYTHONPATH": str(sources)})
            opened.callback(server.kill)
            await server.start(patience=6)  # the first start compiles kernels
            started.append(server)
        yield started[0], started[1]


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True)


async def compare(names: Sequence[str], revision: str, pairs: int) -> None:
    with set_up(quick=False) as stage:
        async with brokers(stage, revision) as sides:
            numbers = itertools.count()

            async def run(side: Server, name: str) -> LoadRun:
                topic = f"{name}-{next(numbers)}"
                result = await LOADS[name](side, topic)
                await side.delete_topic(topic)
                return result

            for name in names:
                for side in sides:
                    await run(side, name)  # warms up
                runs: tuple[list[LoadRun], list[LoadRun]] = ([], [])
                for pair in range(pairs):
                    for number in (0, 1) if pair % 2 else (1, 0):
                        runs[number].append(await run(sides[number], name))
                print(_line(name, "throughput", runs, lambda run: run.per_s), flush=True)
                print(_line(name, "broker CPU", runs, lambda run: run.cost.cpu_s / run.amount), flush=True)


def _line(name: str, figure: str, runs: tuple[list[LoadRun], list[LoadRun]], of: Callable[[LoadRun], float]) -> str:
    ratios = [of(new) / of(old) for new, old in zip(*runs, strict=True)]
    mean, low, high = interval(ratios)
    return f"{name:<10}{figure:<12}ratio {mean:.3f}, 95 % interval {low:.3f} to {high:.3f}, {len(ratios)} pairs"


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Returns the geometric mean and its 95 % confidence interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    pairs = max(count for count in T_95 if count <= len(logs))
    half = T_95[pairs] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.revisions", description=__doc__)
    parser.add_argument("revision", help="the earlier revision, any name that git accepts")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=f"any of {', '.join(LOADS)} (default: all)")
    parser.add_argument("--pairs", type=int, default=12, help="runs of each side (12), at least 10")
    options = parser.parse_intermixed_args()
    if unknown := set(options.loads) - LOADS.keys():
        parser.error(f"unknown load {', '.join(sorted(unknown))}: choose from {', '.join(LOADS)}")
    if options.pairs < min(T_95):
        parser.error(f"--pairs {options.pairs}: an interval needs at least {min(T_95)} pairs")
    asyncio.run(compare(options.loads or list(LOADS), options.revision, options.pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
