"""What both take while nobody produces: for a minute, after half a minute of rest, with some records in the table.

Asked of `lakestream serve`, in itself: below 5 % of a core.
"""

import asyncio
from typing import Final

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.loads import moved
from benchmarks.table.sides import KAFKA_SPARK, Side, sides

RECORDS: Final = 80_000
INTERVAL_S: Final = 5
REST_S: Final = 30
WATCHED_S: Final = 60


async def run(bench: Bench) -> list[Row]:
    async def work(side: Side) -> Run:
        await moved(side, RECORDS)
        await asyncio.sleep(REST_S)
        with measured(*side.pids) as cost:
            await asyncio.sleep(WATCHED_S)
        return Run(WATCHED_S, cost)

    once = Bench(bench.stage, bench.sides, runs=1)
    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.fresh(), INTERVAL_S) as both:
        found = await rounds(once, both, work, warm_ups=0)
    return [
        found.row("idle", "CPU while idle", _percent, "% of a core", against=KAFKA_SPARK, at_most=5.0, in_itself=True)
    ]


def _percent(run: Run) -> float:
    return 100 * run.cost.cpu_s / run.cost.seconds
