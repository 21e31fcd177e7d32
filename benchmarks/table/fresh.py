"""Delay from record to row: a steady load of 5,000 records of 1 KiB per second over 8 partitions, for both intervals.

The delay is the time from the ack at the client to the metadata file of the snapshot with the record, for every record
that was acknowledged in the window. The load also runs before and after the window. CPU is that of all processes in the
window. Target: p50 and p99 at most those of Kafka and Spark at the same interval, with at most their CPU.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.tasks import Stamp
from benchmarks.kafka.loads import generator
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.commits import Commits, Longs
from benchmarks.table.loads import prepare
from benchmarks.table.servers import KAFKA_SPARK, PARTITIONS, TOPIC, VALUES, Side, sides
from lakestream.model import MiB

INTERVALS_S: Final = (5, 1)
PER_S: Final = 5_000
BEFORE_S: Final = 15
WINDOW_S: Final = 40
AFTER_S: Final = 4
"""Load after the window, in addition to the interval."""


Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DelayRun(Run):
    """A run whose amount is in records."""

    took_s: Seconds

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.took_s, share))


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for interval_s in INTERVALS_S:
        rows += await _rows_at(bench, interval_s)
    return rows


async def _rows_at(bench: Bench, interval_s: int) -> list[Row]:
    async def work(side: Side) -> DelayRun:
        prepare(side, bench.stage.folder, 256 * MiB)
        return await _fresh(side, bench, interval_s)

    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.new_folder(), interval_s) as both:
        results = await rounds(bench, both, work)
    what, against = f"{PER_S:,} records/s, every {interval_s} s", KAFKA_SPARK
    return [
        results.row(
            "fresh", f"{what}, ack to row", lambda run: run.percentile(50), "s p50", against=against, at_most=1
        ),
        results.row(
            "fresh", f"{what}, ack to row", lambda run: run.percentile(99), "s p99", against=against, at_most=1
        ),
        results.row("fresh", f"{what}, CPU of all processes", _cores, "cores", against=against, at_most=1),
    ]


async def _fresh(side: Side, bench: Bench, interval_s: int) -> DelayRun:
    window_s = WINDOW_S // 2 if bench.stage.quick else WINDOW_S
    acks = bench.stage.new_folder() / "acks"
    task = Stamp(
        bootstrap=side.broker.bootstrap,
        topic=TOPIC,
        partitions=PARTITIONS,
        records=PER_S * (BEFORE_S + window_s + interval_s + AFTER_S),
        per_s=PER_S,
        skip=0,
        values=VALUES,
        acks_to=str(acks),
    )
    try:
        side.commits.refresh()
        before = side.commits.records
        async with generator(task) as producing:
            producing.go()
            await asyncio.sleep(BEFORE_S)
            with measured(*side.pids) as cost:
                await asyncio.sleep(window_s)
            await producing.result()
        await side.commits.reach(before + task.records)
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; end of the log of {side.name}: {side.log_tail()}") from error
    took_s = _took_s(acks, side.commits, window_s)
    return DelayRun(len(took_s), cost, took_s)


def _took_s(acks: Path, commits: Commits, window_s: int) -> Seconds:
    partitions, offsets, times = _columns(acks)
    start_ns = times.min() + BEFORE_S * 10**9
    chosen = (times >= start_ns) & (times < start_ns + window_s * 10**9)
    took_ns: Longs = commits.times_of(partitions[chosen], offsets[chosen]) - times[chosen]
    return took_ns / 1e9


def _columns(acks: Path) -> Sequence[Longs]:
    columns = np.frombuffer(acks.read_bytes(), np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _cores(run: DelayRun) -> float:
    return run.cost.cpu_s / run.cost.seconds
