"""Produce in bulk: 1 KiB records over 8 partitions, as fast as the server accepts them, with each codec.

Target, compared with an Apache Kafka that syncs its writes: at least its throughput, and at most its server CPU per GB.
Both servers validate every record, so both decompress every batch.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.load.tasks import Produce
from benchmarks.kafka.loads import LoadRun, cpu_s_per_gb, mb_per_s, run_load
from benchmarks.kafka.rounds import Bench, peak_memory, prepare, rounds
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

PARTITIONS = 8
RECORDS = 1_000_000
RECORDS_OF_GZIP = 250_000
"""Fewer, because the client spends most of the time on compression."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.new_folder()) as sides:
        for codec in CODECS:
            rows += await _produce_rows(bench, sides, codec)
        rows.append(peak_memory("produce", "peak memory while producing", sides))
    return rows


async def _produce_rows(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count = bench.scaled(RECORDS_OF_GZIP if codec == "gzip" else RECORDS)
    numbers = itertools.count()

    async def work(server: Server) -> LoadRun:
        topic = f"produce-{codec}-{next(numbers)}"
        await server.create_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, count * SIZE)
        task = Produce(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, codec=codec)
        run = await run_load(server, task, amount=count * SIZE)
        await server.delete_topic(topic)
        return run

    # A slower server receives larger batches, up to 1 MB.
    results = await rounds(bench, sides, work, warm_ups=2)
    batches = ", ".join(f"{side.name} {results.median(side.name, _batch_kib):.0f}" for side in sides)
    what = f"produce 1 KiB records, {codec}"
    return [
        results.row(
            "produce",
            what,
            mb_per_s,
            "MB/s",
            against=KAFKA_SYNCED,
            at_least=1.0,
            note=f"KiB per batch: {batches}",
        ),
        results.row(
            "produce", f"server CPU of produce, {codec}", cpu_s_per_gb, "s/GB", against=KAFKA_SYNCED, at_most=1.0
        ),
    ]


def _batch_kib(run: LoadRun) -> float:
    return run.results[0].batch_bytes / 1024
