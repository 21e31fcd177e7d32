"""From produced records to columns: Avro orders of 15 fields, each with the id of its schema, over 8 partitions.

The producer sends as fast as the server accepts; a run ends when the last record is committed.

The peer's job uses Spark's `from_avro` for the values; its rows have the resulting columns, and each record's offset,
time and key. Lakestream does more: it finds the schema by its id, keeps the headers, and encodes every value again to
verify that the columns reproduce all its bytes, so that it need not store them. Both commit every 5 s while records
arrive; two runs before the measurement warm them up. The rows are the CPU of all processes except the producer, and the
CPU without the brokers: that of the pipeline with its children, and of the Spark job. Target for both: less than the
peer's per GB."""

import random
from dataclasses import dataclass
from typing import Final

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from benchmarks.common.measure import Cost, Run, measured
from benchmarks.common.report import Row
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.payload import write_values
from benchmarks.kafka.rounds import Bench, rounds
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.loads import move_records, prepare
from benchmarks.table.orders import FRAMES, EncodedOrders, avro, order
from benchmarks.table.servers import KAFKA_SPARK, SCHEMA_ID, Lakestream, Side, sides

RECORDS: Final = 4_000_000
KINDS: Final = 262_144
"""A value is repeated in its partition after 32,768 others, 4 MiB: beyond the window of any codec, page or
dictionary."""
INTERVAL_S: Final = 5


@dataclass(frozen=True, slots=True)
class TypedMove(Run):
    """Run whose amount is in bytes of values, schema ids included; `cost` is that of all processes."""

    mover: Cost

    @property
    def mover_cpu_s_per_gb(self) -> float:
        return self.mover.cpu_s / self.amount * 1e9


async def run(bench: Bench) -> list[Row]:
    count, encoded, values = bench.scaled(RECORDS), _encoded_orders(), bench.stage.new_folder() / "values"
    frame = FRAMES.pack(0, SCHEMA_ID)
    write_values([frame + value[len(frame) :] for value in encoded.values], values)

    async def work(side: Side) -> TypedMove:
        prepare(side, bench.stage.folder, 2 * count * len(encoded.values[0]))
        with measured(side.mover_pid) as mover:
            run = await move_records(side, count, str(values))
        return TypedMove(run.amount, run.cost, mover)

    names = bench.of(LAKESTREAM, KAFKA_SPARK)
    async with sides(names, bench.stage.new_folder(), INTERVAL_S, separate=True, schema=encoded.writer.text) as both:
        results = await rounds(bench, both, work, warm_ups=2)
        raw = {side.name: _raw_share(side) for side in both}[LAKESTREAM]
    what, against = "Avro values of 15 fields, from produced to columns", KAFKA_SPARK
    note = f"every value is encoded again and compared; {raw:.1%} keep their bytes"
    return [
        results.row(
            "from_avro",
            f"{what}: CPU, broker included",
            lambda run: run.cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=1,
            note=note,
        ),
        results.row(
            "from_avro",
            f"{what}: CPU of pipeline or Spark job",
            lambda run: run.mover_cpu_s_per_gb,
            "s/GB",
            against=against,
            at_most=1,
            note=note,
        ),
        results.row("from_avro", f"{what}: speed", lambda run: run.per_s / 1e6, "MB/s", against=against),
    ]


def _encoded_orders() -> EncodedOrders:
    rng = random.Random(7)
    return avro([order(rng, number) for number in range(KINDS)])


def _raw_share(side: Side) -> float:
    """Checks that the newest file has the columns; returns the share of values that kept their bytes."""
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
