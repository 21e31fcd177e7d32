"""How soon a record is a row: a steady 5,000 records of 1 KiB a second over 8 partitions, for both intervals.

From the ack, as the client hears it, to the metadata file of the snapshot that has the record, for every record that
was acknowledged in the window. The load goes on before and behind it. CPU is that of everything, in the window.
Asked: p50 and p99 not later than Kafka's and Spark's at the same interval, with less CPU.
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
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.commits import Commits, Longs
from benchmarks.table.loads import prepare
from benchmarks.table.sides import KAFKA_SPARK, PARTITIONS, TOPIC, VALUES, Side, sides
from lakestream.model import MiB

INTERVALS_S: Final = (5, 1)
PER_S: Final = 5_000
BEFORE_S: Final = 15
WINDOW_S: Final = 40
BEHIND_S: Final = 4
"""And the interval."""


Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Fresh(Run):
    """The amount is in records."""

    took_s: Seconds

    def percentile(self, share: float) -> float:
        return float(np.percentile(self.took_s, share))


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for interval_s in INTERVALS_S:
        rows += await _at(bench, interval_s)
    return rows


async def _at(bench: Bench, interval_s: int) -> list[Row]:
    async def work(side: Side) -> Fresh:
        prepare(side, bench.stage.folder, 256 * MiB)
        return await _fresh(side, bench, interval_s)

    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.fresh(), interval_s) as both:
        found = await rounds(bench, both, work)
    what, against = f"{PER_S:,} records/s, every {interval_s} s", KAFKA_SPARK
    return [
        found.row("fresh", f"{what}, ack to row", lambda run: run.percentile(50), "s p50", against=against, at_most=1),
        found.row("fresh", f"{what}, ack to row", lambda run: run.percentile(99), "s p99", against=against, at_most=1),
        found.row("fresh", f"{what}, CPU in all", _cores, "cores", against=against, at_most=1),
    ]


async def _fresh(side: Side, bench: Bench, interval_s: int) -> Fresh:
    window_s = WINDOW_S // 2 if bench.stage.quick else WINDOW_S
    acks = bench.stage.fresh() / "acks"
    task = Stamp(
        bootstrap=side.broker.bootstrap,
        topic=TOPIC,
        partitions=PARTITIONS,
        records=PER_S * (BEFORE_S + window_s + interval_s + BEHIND_S),
        per_s=PER_S,
        skip=0,
        values=VALUES,
        acks_to=str(acks),
    )
    try:
        side.commits.look()
        before = side.commits.records
        async with generator(task) as producing:
            producing.go()
            await asyncio.sleep(BEFORE_S)
            with measured(*side.pids) as cost:
                await asyncio.sleep(window_s)
            await producing.told()
        await side.commits.reach(before + task.records)
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; the last that {side.name} said: {side.last_words()}") from error
    took_s = _took_s(acks, side.commits, window_s)
    return Fresh(len(took_s), cost, took_s)


def _took_s(acks: Path, commits: Commits, window_s: int) -> Seconds:
    partitions, offsets, times = _columns(acks)
    start_ns = times.min() + BEFORE_S * 10**9
    chosen = (times >= start_ns) & (times < start_ns + window_s * 10**9)
    took_ns: Longs = commits.times_of(partitions[chosen], offsets[chosen]) - times[chosen]
    return took_ns / 1e9


def _columns(acks: Path) -> Sequence[Longs]:
    columns = np.frombuffer(acks.read_bytes(), np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def _cores(run: Fresh) -> float:
    return run.cost.cpu_s / run.cost.seconds
