"""CPU of both sides while no records arrive: for a minute, after half a minute of rest, with some records in the table.

Target for `lakestream serve`: below 5 % of a core.
"""

import asyncio
from typing import Final

from benchmarks.common.measure import Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.loads import move_records
from benchmarks.table.servers import KAFKA_SPARK, Side, sides

RECORDS: Final = 80_000
INTERVAL_S: Final = 5
REST_S: Final = 30
WATCHED_S: Final = 60


async def run(bench: Bench) -> list[Row]:
    async def work(side: Side) -> Run:
        await move_records(side, RECORDS)
        await asyncio.sleep(REST_S)
        with measured(*side.pids) as cost:
            await asyncio.sleep(WATCHED_S)
        return Run(WATCHED_S, cost)

    once = Bench(bench.stage, bench.sides, runs=1)
    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.new_folder(), INTERVAL_S) as both:
        results = await rounds(once, both, work, warm_ups=0)
    return [
        results.row("idle", "CPU while idle", _percent, "% of a core", against=KAFKA_SPARK, at_most=5.0, absolute=True)
    ]


def _percent(run: Run) -> float:
    return 100 * run.cost.cpu_s / run.cost.seconds
