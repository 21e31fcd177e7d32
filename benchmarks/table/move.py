"""From produced records to rows: 1 KiB records over 8 partitions, as fast as possible, until the last is committed.

CPU is that of the broker and of the pipeline or Spark job. Both commit every 5 s while records arrive. Two GB before
the measurement warm them up. Target: at most 0.4 of the CPU of Kafka and Spark per GB."""

from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.loads import MoveRun, move_records, prepare
from benchmarks.table.servers import KAFKA_SPARK, Side, sides

RECORDS = 1_000_000
INTERVAL_S = 5


async def run(bench: Bench) -> list[Row]:
    count = bench.scaled(RECORDS)

    async def work(side: Side) -> MoveRun:
        prepare(side, bench.stage.folder, 2 * count * SIZE)
        return await move_records(side, count)

    async with sides(bench.of(LAKESTREAM, KAFKA_SPARK), bench.stage.new_folder(), INTERVAL_S) as both:
        results = await rounds(bench, both, work, warm_ups=2)
    against = KAFKA_SPARK
    return [
        results.row(
            "move",
            "from produced records to rows: CPU, broker included",
            lambda run: run.cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=0.40,
        ),
        results.row(
            "move", "from produced records to rows: speed", lambda run: run.per_s / 1e6, "MB/s", against=against
        ),
        results.row("move", "from produced records to rows: commits", lambda run: run.commits, "", against=against),
    ]
