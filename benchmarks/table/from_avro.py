"""From produced to columns: orders of 15 fields in Avro, behind the id of their schema, over 8 partitions, as fast as
they are taken, until the last is committed.

The peer's job has Spark's `from_avro` for the values, the columns that come of it beside each record's place, time and
key, and nothing else. Ours does more in the same CPU: it looks up the schema by its id, keeps the headers, and encodes
every value again to see that all its bytes come back, so that none has to be kept. Both commit every 5 s while there
is something, and are warm: two runs before do not count. Told is all CPU but the producer's, and that without the
brokers: of the pipeline with all that it starts, and of the Spark job. Asked, of both: less than the peer's per GB.
"""

import random
from dataclasses import dataclass
from typing import Final

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from benchmarks.common.measure import Cost, Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.payload import keep
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.loads import moved, prepare
from benchmarks.table.orders import FRAMES, Made, avro, order
from benchmarks.table.sides import KAFKA_SPARK, SCHEMA_ID, Lakestream, Side, sides

RECORDS: Final = 4_000_000
KINDS: Final = 262_144
"""Each comes again in its partition after 32,768 others, 4 MiB: no codec, page or dictionary looks back that far."""
INTERVAL_S: Final = 5


@dataclass(frozen=True, slots=True)
class TypedMove(Run):
    """The amount is in bytes of values, with what stands in front of them; `cost` is that of all."""

    mover: Cost

    @property
    def mover_cpu_s_per_gb(self) -> float:
        return self.mover.cpu_s / self.amount * 1e9


async def run(bench: Bench) -> list[Row]:
    count, made, values = bench.scaled(RECORDS), _made(), bench.stage.fresh() / "values"
    frame = FRAMES.pack(0, SCHEMA_ID)
    keep([frame + value[len(frame) :] for value in made.values], values)

    async def work(side: Side) -> TypedMove:
        prepare(side, bench.stage.folder, 2 * count * len(made.values[0]))
        with measured(side.mover_pid) as mover:
            everything = await moved(side, count, str(values))
        return TypedMove(everything.amount, everything.cost, mover)

    names = bench.of(LAKESTREAM, KAFKA_SPARK)
    async with sides(names, bench.stage.fresh(), INTERVAL_S, apart=True, schema=made.writer.text) as both:
        found = await rounds(bench, both, work, warm_ups=2)
        raw = {side.name: _raw_share(side) for side in both}[LAKESTREAM]
    what, against = "Avro values of 15 fields, from produced to columns", KAFKA_SPARK
    note = f"every value is encoded again and compared; {raw:.1%} keep their bytes"
    return [
        found.row(
            "from_avro",
            f"{what}: CPU, broker included",
            lambda run: run.cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=1,
            note=note,
        ),
        found.row(
            "from_avro",
            f"{what}: CPU of pipeline or Spark job",
            lambda run: run.mover_cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=1,
            note=note,
        ),
        found.row("from_avro", f"{what}: speed", lambda run: run.per_s / 1e6, "MB/s", against=against),
    ]


def _made() -> Made:
    luck = random.Random(7)
    return avro([order(luck, number) for number in range(KINDS)])


def _raw_share(side: Side) -> float:
    """Of the rows of the newest file: that it has the columns, and which share of the values kept their bytes."""
    newest = max(side.table.glob("**/*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    file = pq.ParquetFile(newest)
    missing = order(random.Random(), 0).keys() - set(file.schema_arrow.names)
    if missing:
        raise LoadFailed(f"{side.name} has no columns {', '.join(sorted(missing))} in {newest.name}")
    if not isinstance(side, Lakestream):
        return 0.0
    values = file.read(["_stream.value"]).column("_stream").combine_chunks().field("value")
    share: float = 1 - values.null_count / len(values)
    return share
