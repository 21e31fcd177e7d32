"""From produced to a row: 1 KiB records over 8 partitions, as fast as they are taken, until the last is committed.

CPU is that of everything: broker, and pipeline or Spark job. Both commit every 5 s while there is something, and are
warm: two GB before do not count. Asked: at most 0.4 of what Kafka and Spark take per GB.
"""

from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.loads import Moved, moved, prepare
from benchmarks.table.sides import KAFKA_SPARK, Side, sides

RECORDS = 1_000_000
INTERVAL_S = 5


async def run(bench: Bench) -> list[Row]:
    count = bench.scaled(RECORDS)

    async def work(side: Side) -> Moved:
        prepare(side, bench.stage.folder, 2 * count * SIZE)
        return await moved(side, count)

    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.fresh(), INTERVAL_S) as both:
        found = await rounds(bench, both, work, warm_ups=2)
    against = KAFKA_SPARK
    return [
        found.row(
            "move",
            "CPU from produced to a row, broker included",
            lambda run: run.cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=0.40,
        ),
        found.row("move", "speed of it", lambda run: run.per_s / 1e6, "MB/s", against=against),
        found.row("move", "commits of it", lambda run: run.commits, "", against=against),
    ]
